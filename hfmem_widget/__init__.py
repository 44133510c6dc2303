"""Live, exact, explained memory of Hugging Face models, in the notebook."""

"""How a training becomes spans; it imports neither torch nor transformers."""

"""What the benches share: how to measure, what to measure, and what stands in for a GPU or a page."""

"""Live memory at the peak, by the place of its allocation."""

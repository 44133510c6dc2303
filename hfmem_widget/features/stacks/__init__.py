"""What was live at the peak, by where it was allocated."""

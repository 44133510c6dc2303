"""The ranks that a watched cell starts, followed while it runs."""

"""The search of the Python heap, on demand, for the names that hold memory."""

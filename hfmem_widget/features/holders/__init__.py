"""What still holds memory, by name: on request, and where a cell left much behind."""

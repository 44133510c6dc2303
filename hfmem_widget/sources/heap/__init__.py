"""What still holds memory: the Python heap, looked through on demand for tensors' storages."""

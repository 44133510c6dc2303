"""Watched cells side by side: figures with their spread, differences, and their course laid over each other."""

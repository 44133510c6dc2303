"""Watched cells side by side: figures with their spread, differences, and their courses on one chart."""

"""A warning before a machine whose CPU and GPU share memory begins to swap."""

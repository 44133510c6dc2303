"""Stand-ins for what a machine without a GPU lacks: scriptable, and shaped like the real thing."""

"""Stand-ins for the hardware that a machine without a GPU lacks: scriptable, with the real interfaces."""

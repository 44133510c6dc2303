"""``--record``: a recording that is written while the code runs, and outlives the process."""

"""Many processes, one chart: a rank writes lines into a run directory, a collector reads those of all."""

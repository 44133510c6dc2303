"""What was watched in this process so far: one small row for every run of a cell or block."""

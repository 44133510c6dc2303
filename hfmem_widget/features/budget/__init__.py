"""A limit on allocated memory: a warning where it is crossed, and the end of a training if wanted."""

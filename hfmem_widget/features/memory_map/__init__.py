"""How memory lies in what an allocator has reserved, and how much of it cannot be used."""

"""What begins and ends watches and their spans: with blocks, cells, Trainers, loading."""

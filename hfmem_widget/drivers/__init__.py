"""The code that begins and ends watches and their spans: for blocks, cells, Trainers, loading."""

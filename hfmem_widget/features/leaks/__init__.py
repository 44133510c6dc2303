"""Whether memory grows from one comparable moment to the next, and who holds what grew."""

"""Out-of-memory errors: cause and remedies, from the error's text and the figures of that instant."""

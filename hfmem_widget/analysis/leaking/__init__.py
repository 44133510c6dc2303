"""Whether memory grows from one like moment to the next: moments, slopes, trends, and what to say of them."""

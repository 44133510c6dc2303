"""A session as one page for a browser: it needs no server, no kernel and no network."""

"""Freeing memory on request: what would be freed, doing it, and measuring before and after."""

"""The command ``hfmem``: recordings in a terminal."""

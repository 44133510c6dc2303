"""A session on disk: JSON Lines that grow with the run, and the session that is read back from them.

The format is described in ``docs/recording.md``. `lines` writes lines, `check` parses them and trusts
nothing, `reader` builds a session from them, `file` handles the files, also while they grow;
`api` and `trace` write formats for other programs. No thread is started here.
"""

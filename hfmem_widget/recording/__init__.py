"""A session on disk: JSON Lines that grow with the run, and the session that is read back from them.

The format is described in ``docs/recording.md``. `lines` makes lines, `check` takes them apart and trusts
nothing, `reader` makes a session of them, `file` is where they lie, also while they
grow; `api` and `trace` are for other programs. No thread is started here.
"""

"""Many processes, one chart: each rank writes lines into a run's directory, a collector reads those of all.

A process learns from `identity` that it is a rank, and which one; `environment` and `site` are how it learns
that it is to write, and `directory` where. Whoever reads goes the other way::

    directory ──files──▶ tail ──bytes──▶ collector ──▶ stream, one a file ──news──▶ overview ──▶ Session
                                             │                                       ▲
                                             └──▶ roster ────────look────────▶ findings

The `roster` knows which streams count, whose clock is off and what all ranks did lately. The `overview` puts
readings on one clock, and writes a session like any other; a strip of ranks by time goes with it. `aggregate`
has the arithmetic, and `run` is what a user has of it all. Only `tail` has a thread, and only `directory`,
`tail` and `run` touch files: the rest takes bytes and times.
"""

"""Watches a command as a cell does, in a process of its own, and says what it knows of the ranks."""

import json
import subprocess
import sys

import hfmem_widget

with hfmem_widget.watch("cell", quiet=True, ranks=sys.argv[1]) as session:
    code = subprocess.run(sys.argv[2:], check=False).returncode
run = session.run
assert run is not None
report = {
    "code": code,
    "outcome": run.overview.spans[0].outcome,
    "findings": {finding.kind: finding.title for finding in run.findings},
    "ranks": {rank: [row.attempt, row.flag, row.step] for rank, row in sorted(run.ranks.items())},
    "notes": list(run.overview.notes),
    "clocks": dict(run.collector.roster.offsets),
}
print(json.dumps(report))

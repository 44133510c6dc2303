"""``hfmem doctor``: what was found here, for bug reports."""

import json
from argparse import Namespace

from hfmem_widget.cli.output import FINE, say
from hfmem_widget.features.doctor.api import doctor as diagnosis


def doctor(arguments: Namespace) -> int:
    """Say what was found; the code is 0, whatever is missing or broken."""
    subjects = diagnosis()
    data = {"schema": "hfmem.doctor/1", **subjects}
    say(json.dumps(data) if arguments.json else repr(subjects))
    return FINE

"""What to change after an out-of-memory error: only what has a reason in the incident, best first."""

from __future__ import annotations

from hfmem_widget.features.oom.model import Advice, Diagnosis, Incident
from hfmem_widget.features.oom.remedies import REMEDIES, left_behind
from hfmem_widget.features.oom.savings import SAVINGS

MOST = 5

IS_ENOUGH = frozenset({"fragmentation", "leak"})
"""With these nothing need be made smaller, once they have a remedy."""


def advise(incident: Incident, diagnosis: Diagnosis) -> tuple[Advice, ...]:
    """Return what the diagnosis calls for, then what saves most; what has no reason here is not told."""
    first = [one for rule in REMEDIES[diagnosis.cause] if (one := rule(incident))]
    savings = () if first and diagnosis.cause in IS_ENOUGH else SAVINGS
    more = [one for rule in savings if (one := rule(incident))]
    more.sort(key=lambda one: one.bytes, reverse=True)
    last = left_behind(incident)
    if last is None:
        return tuple([*first, *more][:MOST])
    return (*[*first, *more][: MOST - 1], last)

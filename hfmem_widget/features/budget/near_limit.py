"""Finds whether a device was nearly full, with or without a budget."""

from collections.abc import Iterator

from hfmem_widget.analysis.facts import Facts, facts_of
from hfmem_widget.session import Finding, Session, Span
from hfmem_widget.text import MIB, format_bytes, format_share

NEARLY_FULL = 0.92  # of a device's memory
ROOM = "A longer sequence or a larger batch may not fit. {}; --budget warns at a limit of your own."
CACHED = "{} of it was memory that PyTorch had cached and can use again."


def near_limit(session: Session, span: Span) -> Iterator[Finding]:
    """Yield one finding if the peak left less than 8 % of a GPU's memory."""
    if session.ranks is not None or any(each.kind == "oom" for each in session.findings):
        return  # the ranks' own findings say so, or the one about the out-of-memory error
    facts = facts_of(session, span)
    gpus = [each for each in facts if ":" in each.device.key and each.device.total > 0]
    nearly_full = sorted((each for each in gpus if _full(each) > NEARLY_FULL), key=_full)
    if not nearly_full:
        return
    fullest = nearly_full[-1]
    device, total, left = fullest.device.key, fullest.capacity, fullest.headroom
    subject = f"{device} was nearly full"
    if len(nearly_full) > 1:
        subject = f"{len(nearly_full)} devices were nearly full, {device} most of all"
    room = format_bytes(left) if left >= MIB else "nothing"
    title = f"{subject}: {format_share(_full(fullest))} of {format_bytes(total)} at the peak, {room} left"
    how = "Lower the peak, for example with a smaller batch"
    if any(phase.kind == "step" for phase in session.phases(span.id)):
        how = "%memfit lists what would need less, with the peak of each"
    advice = [ROOM.format(how)]
    cached = fullest.reserved_peak - fullest.peak.value
    if cached > left:
        advice.append(CACHED.format(format_bytes(cached)))
    evidence = {
        "device": device,
        "devices": len(nearly_full),
        "headroom": round(left),
        "total": round(total),
        "share": round(_full(fullest), 4),
    }
    yield Finding("near_limit", "warn", title, evidence, tuple(advice), span.id)


def _full(facts: Facts) -> float:
    return 1 - facts.headroom / facts.capacity

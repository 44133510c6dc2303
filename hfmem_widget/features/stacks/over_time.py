"""What held a device's memory, at every moment of its history that a picture can show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hfmem_widget.features.stacks.call_sites import place_of, sites_of
from hfmem_widget.features.stacks.live_at_peak import Blocks, Ints, Replay
from hfmem_widget.session.model import NOT_AVAILABLE
from hfmem_widget.session.stacks import BEFORE, BY, Band, By, LivePeak, OverTime, Site
from hfmem_widget.sources.heap.roots import cells_of
from hfmem_widget.view.front_end import running_shell

MOST_MOMENTS = 480
MOST_BANDS = 12  # with the rest as one, and with what was there before
OTHERS = "others"


def live_peak(found: Replay, device: str) -> LivePeak:
    """Return what was live at a device's peak, and what held it over time; seconds since the first event."""
    cells, at = cells_of(running_shell()), found.time_us
    first = found.times[0] if found.times else None
    places = [place_of(frames, cells) for frames in found.table.frames]
    return LivePeak(
        device=device,
        bytes=found.bytes,
        highest=found.active,
        sites=sites_of(found, places),
        time=NOT_AVAILABLE if at is None or first is None else (at - first) / 1e6,
        entries=len(found.times),
        over_time=over_time(found, places) if found.times else None,
    )


def over_time(found: Replay, places: Sequence[Site], most_moments: int = MOST_MOMENTS) -> OverTime:
    """Return the allocated bytes of a history by what held them; `places` are those of its stacks.

    The bands add up to the byte. Of more moments than asked for, the highest, lowest, first and last of equal
    stretches of time remain. Seconds are since the first event.
    """
    times, is_timed = _times(found)
    moments = _chosen(found.allocated, times, most_moments)
    allocated = found.allocated[moments]
    return OverTime(
        moments=tuple((times[moments] / (1e6 if is_timed else 1)).tolist()),
        is_timed=is_timed,
        allocated=tuple(allocated.tolist()),
        bands={by: _bands(found.table, places, by, moments, allocated) for by in BY},
    )


def _times(found: Replay) -> tuple[Ints, bool]:
    """Return the microseconds of each moment since the first event, and True; without times its number."""
    known = [time for time in found.times if time is not None]
    if not known or len(known) < len(found.times) or max(known) <= min(known):
        return np.arange(len(found.allocated)), False
    since = np.maximum.accumulate(np.array(known, dtype=np.int64) - known[0])
    return np.concatenate((since[:1], since)), True


def _chosen(allocated: Ints, times: Ints, most: int) -> Ints:
    if len(allocated) <= most:
        return np.arange(len(allocated))
    columns = most // 4
    column = np.minimum(times * columns // max(1, int(times[-1])), columns - 1)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    chosen: set[int] = set()
    for start, stop in zip(starts, [*starts[1:], len(allocated)], strict=True):
        part = allocated[start:stop]
        chosen |= {int(start), int(stop) - 1}
        chosen |= {int(start + np.argmax(part)), int(start + np.argmin(part))}
    return np.array(sorted(chosen))


def _bands(
    table: Blocks, places: Sequence[Site], by: By, moments: Ints, allocated: Ints
) -> tuple[Band, ...]:
    """Return the bands from the bottom to the top: those from before, the largest, and the rest."""
    names: dict[str, int] = {BEFORE: 0}
    group_of_place = [names.setdefault(getattr(place, by), len(names)) for place in places]
    groups = np.array(group_of_place, dtype=np.int64)[table.stacks]
    highest = _highest(table, groups, len(names))
    ranked = [
        int(group) for group in np.argsort(-highest, kind="stable") if group and highest[group]
    ][: MOST_BANDS - 2]
    sources = dict(zip(group_of_place, (place.source for place in places), strict=True))
    titles = list(names)
    rest, bands = allocated.copy(), []
    for group in ([0] if highest[0] else []) + ranked:
        sizes = _sizes(table, groups == group, moments)
        rest -= sizes
        source = sources[group] if by == "line" else ""
        bands.append(Band(titles[group], tuple(sizes.tolist()), int(highest[group]), source))
    if rest.any():
        bands.append(Band(OTHERS, tuple(rest.tolist()), int(rest.max())))
    return tuple(bands)


def _sizes(table: Blocks, rows: np.ndarray, moments: Ints) -> Ints:
    held = np.zeros(len(moments), dtype=np.int64)
    for edges, sign in ((table.born, 1), (table.gone, -1)):
        order = np.argsort(edges[rows], kind="stable")
        sums = np.concatenate(([0], np.cumsum(table.sizes[rows][order])))
        held += sign * sums[np.searchsorted(edges[rows][order], moments, side="right")]
    return held


def _highest(table: Blocks, groups: Ints, count: int) -> Ints:
    edges = np.concatenate((table.born, table.gone))
    changes = np.concatenate((table.sizes, -table.sizes))
    both = np.concatenate((groups, groups))
    # At one moment what is freed goes first: only what was held together counts.
    order = np.lexsort((changes, edges, both))
    both, sums = both[order], np.cumsum(changes[order])
    # Each group ends at zero, since every block is gone behind the last moment.
    highest = np.zeros(count, dtype=np.int64)
    np.maximum.at(highest, both, sums)
    return highest

"""The parts of the allocated memory over time, as a stack of layers."""

import numpy as np

from hfmem_widget.analysis.curve import Points, chosen_rows, joined
from hfmem_widget.analysis.kept import HOLDERS, STACK, UPWARDS, heights_of, kept_at
from hfmem_widget.session import HELD, Device, Session, Timeline
from hfmem_widget.session.series import OVERVIEW, PARTS, over_ranks
from hfmem_widget.text import plain
from hfmem_widget.view import palette
from hfmem_widget.view.chart.shapes import Curve, Stroke

SLIVER = 0.002  # share of the stack's height that a layer must reach to be drawn
SEAM = "rgba(0,0,0,.3)"  # between parts, which look alike in grey print


def layers_of(session: Session) -> int:
    """Return the most layers that a stack of a session may have."""
    metrics = {each.metric for each in session.series} | {"unattributed", "activations"}
    metrics |= {"kept" for finding in session.findings if finding.evidence.get("kept")}
    return len(metrics.intersection(STACK)) if metrics.intersection(HELD) else 0


def lines_of(session: Session, layer_costs: float = 1.0) -> float:
    """Return the most lines that a chart may have; each layer of its stack counts as `layer_costs` lines."""
    of_ranks = over_ranks(each.metric for each in session.series if each.device == OVERVIEW)
    if of_ranks:
        return len(of_ranks) + 2  # the two edges of a band
    return len(session.devices) + 2 + layer_costs * layers_of(session)


def layers(
    session: Session, device: Device, part: Timeline, view: tuple[float, float], *, columns: int
) -> tuple[Curve, ...]:
    """Return the stack of a device's parts, from the bottom to the top; empty where none is known.

    All are drawn at the rows of the allocated line, which is the top, so that points above each other are of
    one instant. `part` has the rows between the two instants of `view`.
    """
    start, stop = view
    own = session.index(f"{device.key}/allocated")
    held = [at for name in HELD if (at := session.index(f"{device.key}/{name}")) is not None]
    if own is None or own >= part.width or not (part.high[:, [*held]] > 0).any():
        return ()
    kept, holders = kept_at(session, device.key, part.time)
    runs: dict[str, list[Points]] = {name: [] for name in UPWARDS}
    heights: dict[str, list[float]] = {name: [] for name in UPWARDS}
    for chosen in chosen_rows(part, own, start, stop, columns=columns):
        rows, is_high = np.array(chosen).T
        read = np.where(is_high[:, None], part.high[rows], part.low[rows])
        time = (part.time[rows].clip(start, stop) - start).tolist()
        read_parts, edge = heights_of(session, device.key, read, kept[rows]), np.zeros(len(rows))
        for name in UPWARDS:
            edge = edge + read_parts[name]
            runs[name].append(list(zip(time, edge.tolist(), strict=True)))
            heights[name] += read_parts[name].tolist()
    least = SLIVER * max((edge for run in runs[UPWARDS[-1]] for _, edge in run), default=0.0)
    shown = [name for name in UPWARDS if max(heights[name], default=0.0) > least]
    # At the sides of a gap, the lines of all layers are on top of each other.
    seam = Stroke(SEAM, 1 if len(runs[UPWARDS[0]]) == 1 else 0.4)
    return tuple(
        Curve(
            joined(runs[name]),
            seam,
            palette.PARTS[name],
            # Short, since the columns of a legend are as wide as the longest name.
            name=PARTS[name].short or PARTS[name].label,
            tip=f"kept by {plain(holders, HOLDERS)}" if name == "kept" else PARTS[name].label,
            heights=heights[name],
            rank=rank,
        )
        for rank, name in enumerate(shown, start=1)
    )

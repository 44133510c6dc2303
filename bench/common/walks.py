"""Ten minutes of samples of eight GPUs, of which some figures change."""

import numpy as np

from hfmem_widget.session import Sample, Session

TICKS = 6000
A_SECOND = 10
CHANGING = 0.09
"""The share of figures that change from one sample to the next, as measured beside a training."""


def samples_of(session: Session) -> list[Sample]:
    """Return ten minutes of samples: whole bytes, of which some change."""
    random_of = np.random.default_rng(1)
    shape = TICKS, len(session.series)
    moves = random_of.integers(-2000, 2000, shape) * 512 * (random_of.random(shape) < CHANGING)
    start = np.round(np.nan_to_num(session.timeline.high[-1]))
    values = np.abs(start + np.cumsum(moves, axis=0))
    return [Sample(at / A_SECOND, tuple(row)) for at, row in enumerate(values.tolist())]

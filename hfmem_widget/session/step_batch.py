"""Steps that have ended, as columns: a span is made of one of them when it is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from hfmem_widget.session.highs import NOTHING
from hfmem_widget.session.model import NOT_AVAILABLE, Peak, Sample, Span
from hfmem_widget.session.steps import CERTAINTIES, PHASES

EXACT, AT_LEAST, SAMPLED = range(len(CERTAINTIES))

Row = Sequence[float]


@dataclass(frozen=True, eq=False, slots=True)
class StepBatch:
    """Steps of one training, one after the other, all of which ended well.

    Plain lists: there are a few dozen steps at most, for which arrays take longer.

    Attributes
    ----------
    ids, labels : sequence of int and of str
    counts : sequence of dict
        As in a `Span`.
    before, after : sequence of Sample
        What was read where they began and ended.
    keys : sequence of str
        The series that have peaks.
    peaks : sequence of sequence of float
        For each step those of `keys`, in bytes; `NOTHING` for none.
    certainty : sequence of sequence of int
        For each of them the place in `CERTAINTIES`.
    parent : int or None
        The span they are in.
    """

    ids: Sequence[int]
    labels: Sequence[str]
    counts: Sequence[Mapping[str, float]]
    before: Sequence[Sample]
    after: Sequence[Sample]
    keys: Sequence[str]
    peaks: Sequence[Row]
    certainty: Sequence[Sequence[int]]
    parent: int | None = None

    @classmethod
    def of(cls, span: Span) -> Self:
        """Return the batch of one step that has ended."""
        peaks = span.peaks.values()
        return cls(
            (span.id,),
            (span.label,),
            (span.counts,),
            (span.before,),
            (span.before if span.after is None else span.after,),
            tuple(span.peaks),
            ([peak.value for peak in peaks],),
            ([CERTAINTIES.index(peak.certainty) for peak in peaks],),
            span.parent,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def span(self, at: int) -> Span:
        """Return one of them by its place."""
        before, after = self.before[at], self.after[at]
        known = zip(self.keys, self.peaks[at], self.certainty[at], strict=True)
        peaks = {key: Peak(high, CERTAINTIES[by]) for key, high, by in known if high != NOTHING}
        return Span(
            self.ids[at],
            "step",
            self.labels[at],
            before.time,
            before,
            after.time,
            after,
            peaks,
            self.parent,
            "done",
            self.counts[at],
        )

    @property
    def highest(self) -> dict[str, float]:
        """The highest peak of each series."""
        highs = map(max, *self.peaks) if len(self) > 1 else self.peaks[0]
        return {key: high for key, high in zip(self.keys, highs, strict=True) if high != NOTHING}

    def first_with(self, key: str, least: float) -> int:
        """Return the place of the first of them whose peak of a series is as high; one is."""
        column = self.keys.index(key)
        return next(at for at, row in enumerate(self.peaks) if row[column] >= least)

    def with_sampled(
        self, roles: Collection[tuple[int, str]], column_of: Callable[[str], int | None]
    ) -> StepBatch:
        """Return them with what the samples at their edges say, each series in a column of its own.

        That is the peak of those `roles`, by column and key, that have no other, and no bound is lower.
        """
        new = [role for role in roles if role[1] not in self.keys]
        columns, usual = [column for column, _ in new], [SAMPLED] * len(new)
        wanted = {key for _, key in roles}
        peaks, certainties = [], []
        for at, (before, after) in enumerate(zip(self.before, self.after, strict=True)):
            first, last = before.values, after.values
            known, certainty = self.peaks[at], self.certainty[at]
            if any(certainty) or NOTHING in known:
                known, certainty = [*known], [*certainty]
                for place, key in enumerate(self.keys):
                    if known[place] == NOTHING and key in wanted:
                        certainty[place] = SAMPLED
                    if certainty[place] != EXACT and (column := column_of(key)) is not None:
                        known[place] = max(known[place], first[column], last[column])
            peaks.append([*known, *(max(NOTHING, first[at], last[at]) for at in columns)])
            certainties.append([*certainty, *usual])
        keys = [*self.keys, *(key for _, key in new)]
        return replace(self, keys=keys, peaks=peaks, certainty=certainties)

    def figures(self) -> list[list[float]]:
        """Return them as rows of `steps.FIGURES`."""
        return [
            [
                self.parent or 0,
                counts.get("first", counts["step"]),
                counts["step"],
                before.time,
                after.time,
                counts.get("samples", NOT_AVAILABLE),
                counts.get("longest", NOT_AVAILABLE),
                counts.get("tokens", NOT_AVAILABLE),
                counts.get("content_tokens", NOT_AVAILABLE),
            ]
            for counts, before, after in zip(self.counts, self.before, self.after, strict=True)
        ]

    def figures_of(
        self, key: str, column: int | None, phases: Mapping[str, float]
    ) -> list[list[float] | None]:
        """Return the rows of `steps.PER_DEVICE` of a series, whose phases had peaks; None without a peak.

        What was left after each step is in a `column` of the samples.
        """
        at = self.keys.index(key) if key in self.keys else None
        own = [phases.get(kind, NOT_AVAILABLE) for kind in PHASES]
        rows: list[list[float] | None] = []
        for place, (counts, after) in enumerate(zip(self.counts, self.after, strict=True)):
            peak = NOTHING if at is None else self.peaks[place][at]
            if at is None or peak <= 0:
                rows.append(None)
                continue
            tokens = counts.get("largest_batch", counts.get("tokens", NOT_AVAILABLE))
            left = NOT_AVAILABLE if column is None else after.values[column]
            certainty = self.certainty[place][at]
            rows.append([peak, certainty, peak, counts["step"], tokens, left, *own])
        return rows


def size_of(counts: Mapping[str, float]) -> int:
    """Return for how many steps one stands that has such counts."""
    last = counts.get("step", 0.0)
    return int(last - counts.get("first", last)) + 1

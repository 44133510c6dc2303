"""The bytes of a token: at the peak of a step, in words and drawn, and in the KV cache of ``generate``."""

import math
from dataclasses import dataclass

import numpy as np

from hfmem_widget.analysis.facts import end_of
from hfmem_widget.analysis.kv_cache import kv_cache
from hfmem_widget.session import Device, Session, Span
from hfmem_widget.session.model import KVCache
from hfmem_widget.text import KIB, MIB, format_bytes, format_count, format_counted, number
from hfmem_widget.view import html as kit
from hfmem_widget.view import palette

FEWEST_STEPS = 6
LEAST_SPREAD = 1.3  # the tokens of the largest step for each of the smallest, at least
MOST_OFF = 0.02  # share by which a peak may be off the line: else tokens are not the only cost
MOST_DOTS = 61
_HEIGHT, _FOOT, _TOP, _SIDE = 96, 14, 8, 2  # pixels; the side in per cent


@dataclass(frozen=True, slots=True)
class TokenCost:
    """Exact peaks of steps, in bytes, on a line over their tokens."""

    steps: tuple[tuple[float, float], ...]  # tokens and peak, by tokens
    slope: float
    base: float

    def text(self, capacity: float) -> str:
        """Return the bytes that each token adds, and those of twice the most tokens."""
        fewest, most = self.steps[0][0], self.steps[-1][0]
        each = _size(self.slope, MIB - KIB / 2)  # what reads as 1024 KiB is 1.00 MiB
        room = f", of {format_bytes(capacity)}" if capacity > 0 else ""
        return (
            f"Each token adds {each} to the peak of a step, from {format_count(fewest)} to "
            f"{format_count(most)} tokens; if that goes on, {format_count(2 * most)} would need about "
            f"{format_bytes(self.base + self.slope * 2 * most)}{room}."
        )

    def picture(self) -> kit.Fragment:
        """Return the steps as dots over their tokens, with the line."""
        fewest, most = self.steps[0][0], self.steps[-1][0]
        top = max(peak for _, peak in self.steps)

        def place(tokens: float, peak: float) -> tuple[str, str]:
            across = _SIDE + (100 - 2 * _SIDE) * (tokens - fewest) / (most - fewest)
            return f"{across:.3g}", f"{_TOP + (1 - peak / top) * (_HEIGHT - _TOP - _FOOT):.3g}"

        # The last step, which has the most tokens, in any case.
        chosen = dict.fromkeys((*self.steps[:: -(-len(self.steps) // MOST_DOTS)], self.steps[-1]))
        dots = (f"M{x} {y}h0" for x, y in (place(*step) for step in chosen))
        (x1, y1), (x2, y2) = (place(at, self.base + self.slope * at) for at in (fewest, most))
        foot = f'y="{_HEIGHT - 3}"'
        ends = ((f"{_SIDE}%", "start", fewest), (f"{100 - _SIDE}%", "end", most))
        labels = (
            f'<text x="{x}" {foot} text-anchor="{side}">{format_count(tokens)} tokens</text>'
            for x, side, tokens in ends
        )
        peaks = f"peaks from {format_bytes(self.steps[0][1])} to {format_bytes(top)}"
        return kit.Fragment(
            kit.drawing(
                f'<svg role="img" aria-label="{peaks} over tokens" width="100%" height="{_HEIGHT}" '
                f'style="display:block;font-size:11px;margin-top:6px" fill="currentColor">'
                f'<path d="M0 {_HEIGHT - _FOOT}h9999" stroke="currentColor" opacity=".25"/>'
                f'<line x1="{x1}%" y1="{y1}" x2="{x2}%" y2="{y2}" stroke="currentColor" '
                f'stroke-dasharray="3 3" opacity=".5"/>'
                # One path for all, as wide as the page: its caps stay round.
                f'<svg viewBox="0 0 100 {_HEIGHT}" preserveAspectRatio="none"><path d="{"".join(dots)}" '
                f'stroke="{palette.PARTS["activations"]}" stroke-width="5" stroke-linecap="round" '
                f'vector-effect="non-scaling-stroke"/></svg>'
                f'<text x="{_SIDE}%" y="{_TOP + 4}">peak of a step, up to {format_bytes(top)}</text>'
                f"{''.join(labels)}</svg>"
            )
        )


def token_cost(session: Session, span: Span, device: Device) -> TokenCost | None:
    """Return the cost of a token; None unless the peaks of the steps are on a line over their tokens."""
    steps = sorted(
        (memory.worst_tokens, memory.peak)
        for step in session.steps
        if span.start <= step.start <= end_of(session, span)
        and (memory := step.devices.get(device.key)) is not None
        and memory.certainty == "exact"
        and memory.worst_tokens > 0
    )
    if len(steps) < FEWEST_STEPS or steps[-1][0] < LEAST_SPREAD * steps[0][0]:
        return None
    tokens, peaks = np.array(steps).T
    slope, base = map(float, np.polyfit(tokens, peaks, 1))
    is_line = bool((np.abs(base + slope * tokens - peaks) <= MOST_OFF * peaks).all())
    # A slope within the scatter is not a cost of tokens.
    if not is_line or slope * (tokens[-1] - tokens[0]) < 5 * MOST_OFF * float(peaks.max()):
        return None
    return TokenCost(tuple(steps), slope, base)


def kv_cache_text(session: Session, span: Span) -> str:
    """Return the growth of a span's KV cache, and the tokens that would fit; empty without a cache."""
    cache = kv_cache(session, span)
    return "" if cache is None else sentence(cache)


def sentence(cache: KVCache) -> str:
    """Return the sentence about a cache."""
    begin = f"KV cache: {format_bytes(cache.bytes)}"
    if cache.limit:
        return (
            f"{begin}, allocated at once for at most {format_counted(cache.limit, 'token')}; "
            f"each takes {_each(cache)}."
        )
    window = format_counted(cache.window, "token")
    if cache.token_bytes:
        grows = f"each token takes {_each(cache)}"
        if cache.window_bytes:
            grows += f", and {_size(cache.window_bytes)} more up to {window}"
    elif cache.window_bytes:
        return f"{begin}; each token takes {_each(cache)}; it stops growing at {window}."
    else:
        return f"{begin}."
    if not math.isfinite(cache.longest):
        return f"{begin}; {grows}."
    return (
        f"{begin}; {grows}; about {_rounded(cache.longest)} tokens would fit in the memory that was free "
        "(an estimate: a tenth of it is left for temporaries, and a longer prompt needs more)."
    )


def _each(cache: KVCache) -> str:
    many = f"{format_counted(cache.sequences, 'sequence')}, " if cache.sequences > 1 else ""
    return f"{_size(cache.token_bytes or cache.window_bytes)} ({many}all layers)"


def _size(size: float, least: float = MIB) -> str:
    return format_bytes(size) if size >= least else f"{number(size, KIB)} KiB"


def _rounded(count: float) -> str:
    # An estimate has two digits.
    digits = max(0, int(math.log10(max(count, 1))) - 1)
    return format_count(math.floor(count / 10**digits) * 10**digits)

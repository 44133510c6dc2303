"""Plain and escaped text, and the formatting and parsing of bytes and seconds.

Labels and device names are made plain once, on entry, and escaped by each sink for its own syntax. Internally
memory is in bytes and time in seconds. Shown memory has binary units (GiB, MiB), as in nvidia-smi.
"""

import hashlib
import html
import math
import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from hfmem_widget.errors import OptionError

MAX_LENGTH = 120

DEVICE_KEY = re.compile(r"(?!gpu:)[a-z]+:\d+|cpu|ranks")
"""A device as `torch.device` prints it, ``ranks`` for all ranks of a run, or one rank such as ``rank:7``."""


def plain(text: object, limit: int = MAX_LENGTH) -> str:
    """Return `text` on one line without control, format or bidi characters, at most `limit` long."""
    raw = str(text)[: 4 * limit + 1024]
    if len(raw) <= limit and raw.isascii() and raw.isprintable() and "  " not in raw:
        return raw.strip(" ")  # the usual case is fast: spans are labelled while a model trains
    kept = (
        " " if char.isspace() else char
        for char in raw
        if char.isspace() or unicodedata.category(char) not in {"Cc", "Cf", "Cs", "Co", "Cn"}
    )
    line = " ".join("".join(kept).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def lines_of(code: str) -> list[str]:
    """Return the lines of a cell that are not empty, without indentation."""
    return [line.strip() for line in code.splitlines() if line.strip()]


def digest_of(code: str) -> str:
    """Return twelve hexadecimal digits that are the same for the same code."""
    return hashlib.blake2b(code.encode(errors="replace"), digest_size=6).hexdigest()


def first_line(code: str) -> str:
    """Return the first line of a cell that is neither a comment nor a cell magic."""
    return next((line for line in lines_of(code) if not line.startswith(("#", "%%"))), "")


def torch_module(device: str) -> str:
    """Return the name of torch's module for a device, such as ``torch.cuda`` for ``cuda:0``."""
    return f"torch.{device.partition(':')[0] or 'cuda'}"


def checkpointing_option() -> str:
    """Return the name of the Trainer's argument for checkpointing in the loaded transformers."""
    module = sys.modules.get("transformers.training_args")
    fields = getattr(getattr(module, "TrainingArguments", None), "__dataclass_fields__", {})
    newer = "activation_checkpointing"
    return newer if newer in fields else "gradient_checkpointing"


def wrong_value(given: object, name: str, allowed: str, hint: str = "") -> OptionError:
    """Return the error for a value of the option or parameter `name`; `allowed` says what it must be."""
    value = repr(plain(given)) if isinstance(given, str) else plain(repr(given))
    return OptionError(f"{name} must be {allowed}, not {value}{hint}")


def readable(error: OSError) -> str:
    """Return the reason of an error of a file, in a few words."""
    return plain(error.strerror or type(error).__name__)


def for_plotly(text: object) -> str:
    """Return `text` made plain, with Plotly's tags escaped and its MathJax switched off."""
    # With MathJax loaded, Plotly renders text between dollars (plotly.js#8051: \href{javascript:…} was
    # reachable from titles and annotations); it decodes entities later.
    return html.escape(plain(text), quote=False).replace("$", "&#36;")


def for_csv(value: object) -> object:
    """Return a cell of a CSV: text made plain, with a quote if a spreadsheet took it for a formula."""
    if not isinstance(value, str):
        return value
    text = plain(value, max(MAX_LENGTH, len(value)))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text  # OWASP: CSV injection


_MARKDOWN = re.compile(r"[\\`*_{}\[\]|~$]")
_REFERENCE = re.compile(r"[@#]|:(?=//)|(?<=www)\.")


def for_markdown(text: object, limit: int = MAX_LENGTH) -> str:
    """Return `text` made plain, with Markdown's syntax escaped, and without mentions or links."""
    escaped = _MARKDOWN.sub(r"\\\g<0>", html.escape(plain(text, limit), quote=False))
    # GitHub looks for mentions and addresses after unescaping: a zero-width space hides them.
    return _REFERENCE.sub(r"\g<0>&#8203;", escaped)


KIB, MIB, GIB, TIB, PIB = (1024.0**power for power in range(1, 6))

MISSING = "n/a"
MINUS = "\u2212"


_UNITS = (MIB, "MiB"), (GIB, "GiB"), (TIB, "TiB"), (PIB, "PiB")


def unit_for(magnitude: float) -> tuple[float, str]:
    """Return the divisor and the name of the unit for `magnitude` bytes: GiB from 1000 MiB up."""
    if not math.isfinite(magnitude):
        return GIB, "GiB"
    fits = (unit for unit in _UNITS if abs(magnitude) < 999.5 * unit[0])
    return next(fits, _UNITS[-1])


def number(value: float, divisor: float, *, signed: bool = False) -> str:
    """Return `value` bytes in units of `divisor`, without the unit's name."""
    if not math.isfinite(value):
        return MISSING
    magnitude = abs(value) / divisor
    text = f"{magnitude:,.{0 if magnitude >= 999.5 else 1 if magnitude >= 9.995 else 2}f}"
    if signed and text == "0.00":
        return "±0"
    sign = MINUS if value < 0 and text != "0.00" else "+" if signed else ""
    return sign + text


def json_number(value: float, decimals: int | None = None) -> float | int | None:
    """Return a figure for JSON: whole figures as integers, None for one that is not available."""
    if not math.isfinite(value):
        return None
    if value == int(value):
        return int(value)
    return value if decimals is None else round(value, decimals)


def json_data(value: object) -> Any:
    """Return nested data for JSON; other objects become text."""
    if isinstance(value, Mapping):
        return {plain(name): json_data(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_data(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    return json_number(value, 9) if isinstance(value, float) else plain(value)


def format_bytes(value: float, *, signed: bool = False) -> str:
    """Return `value` bytes as text, such as ``6.99 GiB``, ``+12.5 MiB`` or ``±0``."""
    if not math.isfinite(value):
        return MISSING
    divisor, name = unit_for(value)
    text = number(value, divisor, signed=signed)
    return text if text == "±0" else f"{text} {name}"


def format_count(count: float) -> str:
    """Return a count as text, such as ``1,024``; bytes have `format_bytes`."""
    return f"{round(count):,}" if math.isfinite(count) else MISSING


def format_rate(rate: float) -> str:
    """Return a number per second, such as ``34.8``, ``2,804`` or ``0.0303``."""
    if 0.0 < abs(rate) < 0.995:
        return f"{rate:.3g}"
    return f"{rate:,.0f}" if abs(rate) >= 999.5 else number(rate, 1.0)


def format_counted(count: float, noun: str) -> str:
    """Return a count with its noun, such as ``1 object`` or ``1,024 objects``."""
    return f"{format_count(count)} {noun}" + ("" if count == 1 else "s")


def format_list(items: Iterable[str], most: int) -> str:
    """Return a list for a sentence: ``a, b and c``; of more than `most` and one, ``a, b and 3 more``."""
    texts = list(items)
    if len(texts) > most + 1:
        texts[most:] = [f"{format_count(len(texts) - most)} more"]
    *first, last = texts
    return f"{', '.join(first)} and {last}" if first else last


def ordinal(count: int) -> str:
    """Return an ordinal number, such as ``1st``, ``12th`` or ``23rd``."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count}{'th' if count // 10 % 10 == 1 else ending}"


def format_share(share: float) -> str:
    """Return a share as a percentage, such as ``62 %``, ``4.2 %`` or ``<0.1 %``."""
    percent = 100 * share
    if not math.isfinite(percent):
        return MISSING
    if 0 < percent < 0.05:
        return "<0.1 %"
    return f"{percent:.0f} %" if abs(percent) >= 9.95 or percent == 0 else f"{percent:.1f} %"


def format_change(before: float, after: float) -> str:
    """Return both readings in the unit of the larger, such as ``0.00 → 3.75 GiB``."""
    finite = [value for value in (before, after) if math.isfinite(value)]
    if not finite:
        return MISSING
    divisor, name = unit_for(max(finite, key=abs))
    return f"{number(before, divisor)} → {number(after, divisor)} {name}"


def time_text(seconds: float, form: str, *, is_local: bool = False) -> str:
    """Return seconds since the epoch in a format of `time.strftime`, in UTC unless `is_local`.

    They may come from a file: an instant that no calendar has is returned as words.
    """
    try:
        return time.strftime(form, (time.localtime if is_local else time.gmtime)(seconds))
    except (OSError, OverflowError, ValueError):
        return "a time outside the calendar"


def format_duration(seconds: float) -> str:
    """Return a duration as text, such as ``4 ms``, ``11.6 s``, ``3 min 07 s`` or ``2 h 05 min``."""
    if not math.isfinite(seconds):
        return MISSING
    seconds = max(seconds, 0.0)
    if seconds < 0.9995:
        milliseconds = seconds * 1000
        return f"{milliseconds:.0f} ms" if milliseconds >= 9.5 else f"{milliseconds:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


_SIZES = {"": 1.0, "b": 1.0, "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) *([kmgt]ib|b|)", re.IGNORECASE)
_OTHER_UNIT = re.compile(r"([\d.]+) *([kmgt])b?", re.IGNORECASE)


def parse_bytes(
    text: str, of: str, allowed: str = "a size such as 20GiB, 500MiB or 64KiB"
) -> float:
    """Return the bytes of a size such as ``20GiB``, ``1.5 MiB`` or ``4096``.

    Raises `OptionError` if it is not a size; the message names the option `of`, and what is `allowed`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        other = _OTHER_UNIT.fullmatch(text.strip())
        hint = f"; did you mean {other[1]}{other[2].upper()}iB?" if other else ""
        raise wrong_value(text, of, allowed, hint)
    return float(match[1]) * _SIZES[match[2].lower()]


_PERCENT = re.compile(r"(\d{1,4}(?:\.\d{1,6})?) *%?")


def parse_share(text: str, of: str, allowed: str = "a percentage such as 2% or 0.5%") -> float:
    """Return the share that a percentage such as ``2%`` is; raises `OptionError` as `parse_bytes` does."""
    match = _PERCENT.fullmatch(text.strip())
    if match is None:
        raise wrong_value(text, of, allowed)
    return float(match[1]) / 100

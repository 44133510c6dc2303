"""The options of a watch: each is a field of `WatchOptions`, from which flags and texts are derived."""

import difflib
import inspect
import math
import os
import re
import textwrap
from argparse import SUPPRESS, ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypedDict, TypeGuard, TypeVar, get_type_hints

from hfmem_widget.errors import OptionError
from hfmem_widget.text import DEVICE_KEY, MIB, parse_bytes, plain, wrong_value

Documented = TypeVar("Documented", bound=Callable[..., object])


@dataclass(frozen=True, slots=True)
class Option:
    """An option for Python and for argparse.

    `heading` begins a group. `parse` checks and converts a given value; None for a switch. `off` is a flag
    that sets the option to False, with its help, where the other flags take a value.
    """

    default: Any
    help: str
    flags: tuple[str, ...]
    argument: Mapping[str, Any]
    heading: str
    parse: Callable[[Any], Any] | None
    off: tuple[str, str] = ("", "")


def _is_between(value: object, least: float, most: float) -> TypeGuard[float]:
    # A bool is an int, and an interval of "True" is a slip.
    return isinstance(value, int | float) and value is not True and least <= value <= most


INTERVAL = 0.1
"""Seconds between samples if neither a watch nor JupyterLab's settings have an interval."""


def seconds(interval: object) -> float | None:
    """Return the seconds between samples, from 0.01 to 3600; None if not given."""
    if interval is None or _is_between(interval, 0.01, 3600):
        return interval
    raise wrong_value(interval, "interval", "a number of seconds from 0.01 to 3600")


OF_WHAT = {"allocated": "allocated", "reserved": "reserved", "device": "device_used"}
"""The metrics of budgets, and their series."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A budget of one metric: `size` in bytes, or a `share` of a device's memory."""

    size: float
    metric: str = "allocated"
    share: float | None = None

    def on(self, total: float) -> float:
        """Return the budget in bytes on a device with `total` bytes; NaN if those are unknown."""
        return self.size if self.share is None else self.share * total


def limit_of(budget: object) -> Limit | None:
    """Return a budget: bytes, or a text such as "20GiB", "90%", "reserved=90%" or "device=75GiB"."""
    if budget is None or isinstance(budget, Limit):
        return budget
    size, metric, share = budget, "allocated", math.nan
    if isinstance(budget, str):
        of_what, equals, text = budget.partition("=")
        if not equals:
            of_what, text = "allocated", budget
        if of_what.strip() not in OF_WHAT:
            raise wrong_value(budget, "budget", "of allocated=, reserved= or device=")
        metric, text = OF_WHAT[of_what.strip()], text.strip()
        if text.endswith("%"):
            with suppress(ValueError):
                share = float(text[:-1]) / 100
            if _is_between(share, 0.01, 1):
                return Limit(0.0, metric, share)
            raise wrong_value(budget, "budget", "a share from 1% to 100%")
        size = parse_bytes(text, of="budget")
    # Less than 1 MiB is a slip: 20 for 20GiB. More than 2**63 bytes cannot be addressed.
    if not _is_between(size, MIB, 2**63 - 1):
        allowed = (
            "a size with its unit such as '20GiB', a share such as '90%', or bytes, 1 MiB or more"
        )
        raise wrong_value(budget, "budget", allowed)
    return Limit(size, metric)


def device_keys(devices: object) -> tuple[str, ...]:
    """Return device keys, given as a sequence or in a text separated by commas; none means all devices."""
    if isinstance(devices, str):
        devices = [key.strip() for key in devices.split(",") if key.strip()]
    keys = (
        () if devices is None else tuple(devices) if isinstance(devices, Iterable) else (devices,)
    )
    for key in keys:
        if not isinstance(key, str):
            raise wrong_value(key, "devices", "names such as 'cuda:0' or 'cpu'")
        if not DEVICE_KEY.fullmatch(key):
            is_gpu = plain(key).lower().startswith(("gpu", "cuda"))
            names = "they are called 'cpu', 'cuda:0', 'cuda:1', 'xpu:0', 'mps:0' …"
            hint = "the first GPU is called 'cuda:0'" if is_gpu else names
            message = f"there is no device {plain(key)!r}; {hint}"
            raise OptionError(message)
    return keys


def path_text(path: object, name: str = "record", what: str = "a file or a folder") -> str:
    """Return a path as text; it is not checked whether it can be written."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(text, str) or "\0" in text:
        raise wrong_value(path, name, f"the path of {what}")
    return text


def path_of(given: object) -> Path:
    """Return a given path; ``~`` becomes the user's home, if there is one."""
    return Path(os.path.expanduser(path_text(given, "path")))  # noqa: PTH111  (pathlib raises there)


def auto_or(other: str, name: str) -> Callable[[object], str]:
    """Return the parser of an option that is "auto" or one other word."""

    def check(given: object) -> str:
        if not isinstance(given, str) or given not in {"auto", other}:
            raise wrong_value(given, name, f"'auto' or '{other}'")
        return given

    return check


def run_directory(given: object) -> bool | str:
    """Return the directory for ranks, or True for a temporary one; False if none are followed."""
    return given if isinstance(given, bool) else path_text(given, "ranks", "a folder") or True


def expanded(path: str) -> Path:
    """Return a given path as an absolute one."""
    try:
        return path_of(path).absolute()
    except FileNotFoundError:
        gone = "the working folder is gone; give an absolute path"
        raise OptionError(f"{plain(path)}: {gone}") from None


def function(given: object) -> Callable[..., object] | None:
    """Return a given function, which may be called at any time on any thread, or None."""
    if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
        raise wrong_value(given, "on_finding", "a function that takes a finding, and is not async")
    return given


def value(
    default: Any,
    flags: str,
    text: str,
    parse: Callable[[Any], Any] = plain,
    *,
    heading: str = "",
    off: tuple[str, str] = ("", ""),
    kind: type[float] | None = None,
) -> Any:
    """Return a field for an option with a value; the last word of `flags` is its name in the manual."""
    *names, metavar = flags.split()
    argument = {"metavar": metavar, "type": kind, "help": text.replace("%", "%%")}
    option = Option(default, text, tuple(names), argument, heading, parse, off)
    return field(default=default, metadata={"option": option})


def switch(flags: str, text: str, without: str = "", *, heading: str = "") -> Any:
    """Return a field for a switch; with a help text `without` it is on, and its flag turns it off."""
    argument = {"action": "store_false" if without else "store_true", "help": without or text}
    option = Option(bool(without), text, tuple(flags.split()), argument, heading, None)
    return field(default=option.default, metadata={"option": option})


@dataclass(frozen=True, slots=True)
class Options:
    """The base of classes whose fields, made by `value` and `switch`, are options and are checked."""

    def __post_init__(self) -> None:
        for name, option in options_of(type(self)).items():
            given = getattr(self, name)
            if option.parse is not None:
                object.__setattr__(self, name, option.parse(given))
            elif not isinstance(given, bool):
                raise wrong_value(given, name, "True or False")

    def changed(self, given: Mapping[str, Any], taker: str) -> Self:
        """Return a copy with given options; an `OptionError` names the `taker`, such as ``watch()``."""
        options = options_of(type(self))
        for name in given:
            if name not in options:
                near = difflib.get_close_matches(name, options, n=1)
                hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(options)}"
                message = f"{taker} has no option {plain(name)}; {hint}"
                raise OptionError(message)
        return replace(self, **given)


def add_flags(parser: ArgumentParser, options: Mapping[str, Option], group: Any = None) -> None:
    """Add the flags of options to a parser, without defaults in the namespace."""
    group = group or parser
    for name, option in options.items():
        group = parser.add_argument_group(option.heading) if option.heading else group
        group.add_argument(*option.flags, dest=name, default=SUPPRESS, **option.argument)
        flag, text = option.off
        if flag:
            group.add_argument(flag, dest=name, default=SUPPRESS, action="store_false", help=text)


def options_of(declared: Any) -> Mapping[str, Option]:
    """Return the options of a class or an instance of `Options`, by name, in the order of the fields."""
    return {
        each.name: each.metadata["option"] for each in fields(declared) if "option" in each.metadata
    }


class WatchKeywords(TypedDict, total=False):
    """The options as keyword arguments, with all types that are accepted."""

    label: str
    interval: float | None
    devices: str | Sequence[str] | None
    ranks: bool | str | os.PathLike[str]
    chart: bool
    panel: bool
    quiet: bool
    ledger: bool
    phases: str
    steps: str
    resident_peak: bool
    budget: float | str | None
    stop: bool
    stacks: bool
    memory_map: bool
    record: str | os.PathLike[str]
    on_finding: Callable[..., object] | None


@dataclass(frozen=True, slots=True)
class WatchOptions(Options):
    """The options of a watch.

    Parameters
    ----------
    **options
        Each is converted: devices to a tuple of their keys, the budget to a `Limit`.

    Raises
    ------
    OptionError
        If a value is not allowed; the message says which values are.
    """

    label: str = value(
        "",
        "-l --label TEXT",
        "A name for it. Default for a cell: its number.",
        heading="what is watched",
    )
    interval: float | None = value(
        None,
        "-i --interval SECONDS",
        "Seconds between samples, from 0.01 to 3600. Default: that of JupyterLab's settings, or 0.1.",
        seconds,
        kind=float,
    )
    devices: tuple[str, ...] = value(
        (),
        "-d --devices DEVICES",
        "Watch only these, such as cuda:0,cpu. Default: all.",
        device_keys,
    )
    ranks: bool | str = value(
        True,  # noqa: FBT003  (a default)
        "--ranks PATH",
        "Follow the ranks that the code starts, such as those of torchrun, and keep their recordings in this "
        "directory. Default: in a temporary one, for as long as the session is kept.",
        run_directory,
        off=("--no-ranks", "Do not follow the ranks that the code starts."),
    )
    chart: bool = switch(
        "--no-chart",
        "Show a live chart while the code runs, and a still one afterwards.",
        "Show only the card.",
        heading="what is shown",
    )
    panel: bool = switch(
        "--no-panel",
        "Open JupyterLab's memory panel with the first watch of a notebook. Without chart "
        "and panel, nothing is sent to the page while the code runs.",
        "Do not open JupyterLab's memory panel.",
    )
    quiet: bool = switch("-q --quiet", "Show nothing; the session is the only result.")
    ledger: bool = switch(
        "--no-peak-reset --no-ledger",
        "Measure exact peaks with the allocator's peak counters. Without them, peaks are lower bounds.",
        "Leave the allocator's peak counters alone. Peaks are then lower bounds.",
        heading="what is measured",
    )
    phases: str = value(
        "auto",
        "--phases WHICH",
        "all measures the phases of a training (forward, backward, optimizer) on every step, whatever that "
        "costs. Default: auto, which measures them on fewer steps where they would take more than 1 % of the "
        "time.",
        auto_or("all", "phases"),
    )
    steps: str = value(
        "auto",
        "--steps WHICH",
        "each measures the exact peak of every step of a training, whatever that costs. Default: auto, which "
        "measures one exact peak for several steps where they are so short that it would take more than 1 % "
        "of the time.",
        auto_or("each", "steps"),
    )
    resident_peak: bool = switch(
        "--resident-peak",
        "Measure the exact peak of the resident set by resetting the kernel's high-water mark. This also "
        "resets ru_maxrss of resource.getrusage.",
    )
    budget: Limit | float | str | None = value(  # noqa: RUF009  (a field, as the others)
        None,
        "--budget SIZE",
        "Warn once if more than this is allocated on a device: a size such as 20GiB, or a share of the "
        "device such as 90%. reserved=90% warns if more is reserved, and device=90% if more of the device is "
        "in use, by whatever process.",
        limit_of,
    )
    stop: bool = switch(
        "--stop", "With a budget: end a Trainer's training after the step that exceeded it."
    )
    stacks: bool = switch(
        "--stacks",
        "Record where memory is allocated, and show what was live at the peak by source line, module and "
        "operator. This slows the code down; the card says by how much.",
    )
    memory_map: bool = switch(
        "--map --memory-map",
        "Show how the allocator's reserved memory is laid out, while the code runs and at the end.",
    )
    record: str = value(
        "",
        "--record PATH",
        "Record to a new file while the code runs: NAME.hfmem.jsonl, or NAME.hfmem.jsonl.gz to compress it "
        "at the end. In a folder, each run gets a name of its own. hfmem_widget.open(PATH) shows it again.",
        path_text,
        heading="what is kept",
    )
    on_finding: Callable[..., object] | None = value(  # noqa: RUF009  (a field, as the others)
        None,
        "--on-finding NAME",
        "Call this function with each finding, such as a leak, once, on a thread of its own.",
        function,
    )

    def __post_init__(self) -> None:
        # super() fails in a dataclass with slots (python/cpython#90562).
        Options.__post_init__(self)
        if self.stop and self.budget is None:
            message = "stop needs a budget to stop at"
            raise OptionError(message)

    def check_devices(self, present: tuple[str, ...]) -> None:
        """Raise `OptionError` if a device of the options is not `present`."""
        for device in self.devices:
            if device not in present:
                here = ", ".join(present)
                raise OptionError(f"there is no device {plain(device)!r} here, only {here}")


OPTIONS: Mapping[str, Option] = options_of(WatchOptions)


def lists_options(
    documented: Documented, declared: Any = WatchOptions, keywords: Any = WatchKeywords
) -> Documented:
    """Replace ``**`` in a docstring and a signature by the options of `declared`, typed as in `keywords`."""
    types, options = get_type_hints(keywords), options_of(declared)
    entries = "\n".join(_entry(name, option, types[name]) for name, option in options.items())
    doc = inspect.cleandoc(documented.__doc__ or "")
    documented.__doc__ = re.sub(r"^\*\*.*(\n {4}.*)*", lambda _: entries, doc, flags=re.MULTILINE)
    called: Any = vars(documented).get("__init__", documented)
    signature, keyword = inspect.signature(called), inspect.Parameter.KEYWORD_ONLY
    parameters = {
        name: parameter
        for name, parameter in signature.parameters.items()
        if parameter.kind <= keyword
    }
    for name, option in options.items():
        more = inspect.Parameter(name, keyword, default=option.default, annotation=types[name])
        parameters.setdefault(name, more)
    called.__signature__ = signature.replace(parameters=list(parameters.values()))
    return documented


def _entry(name: str, option: Option, annotation: object) -> str:
    types = inspect.formatannotation(annotation)
    types = types.replace("collections.abc.", "").replace(" | None", "").replace(" | ", " or ")
    default = "optional" if option.default in (None, "", ()) else f"default {option.default}"
    text = textwrap.indent(textwrap.fill(option.help, 100), "    ")
    return f"{name} : {types}, {default}\n{text}"


lists_options(WatchOptions)

"""What can be configured, and what is said about the rest."""

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import get_type_hints

import pytest

import hfmem_widget
from hfmem_widget.errors import OptionError
from hfmem_widget.options import OPTIONS, Limit, WatchKeywords, WatchOptions, device_keys, limit_of
from hfmem_widget.text import GIB, MIB

NAN, INFINITE = float("nan"), float("inf")
SLIPS = ("20", 20, 0, -GIB, 1e5, NAN, INFINITE, True, [GIB], 10**400)
REFUSED: list[tuple[str, object, str]] = [
    *(
        ("interval", one, f"interval must be a number of seconds from 0.01 to 3600, not {one!r}")
        for one in (0, -1, 0.001, 4000, NAN, INFINITE, True, "0.1")
    ),
    *(("phases", one, "phases must be 'auto' or 'all'") for one in ("none", "", 4, None, True, ["all"])),
    *(("budget", one, "budget") for one in ("0.5%", "101%", "ninety%", "cache=90%", "nan%")),
    *(("budget", one, "such as '90%', or bytes, 1 MiB or more, not ") for one in SLIPS),
    *(("devices", one, "must be names such as 'cuda:0' or 'cpu', not") for one in (0, [0], [None])),
    ("devices", ("cpu", "gpu"), "no device 'gpu'; the first GPU is called 'cuda:0'"),
    ("devices", ("cpu", "cuda"), "is called 'cuda:0'"),
    ("devices", ("cpu", "zz"), "no device 'zz'; they are called 'cpu', 'cuda:0'"),
    ("stop", True, "stop needs a budget"),
    *(
        (name, "no", f"{name} must be True or False, not 'no'")
        for name in OPTIONS
        if OPTIONS[name].parse is None
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "text"), REFUSED)
def test_an_invalid_value_is_refused_at_once(name: str, value: object, text: str) -> None:
    """The error says what is allowed and what was given, and is a ValueError."""
    with pytest.raises(OptionError, match=re.escape(text)) as raised:
        WatchOptions(**{name: value})  # type: ignore[arg-type]
    assert isinstance(raised.value, ValueError)


def test_a_label_is_plain_text() -> None:
    """Control and bidi characters go, and ten thousand characters are cut."""
    assert WatchOptions(label="a\u202e\nb").label == "a b"
    assert len(WatchOptions(label="x" * 10_000).label) == 120


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        ("20GiB", Limit(20 * GIB)),
        ("1.5 mib", Limit(1.5 * MIB)),
        (str(2**30), Limit(GIB)),
        (2**30, Limit(GIB)),
        (MIB, Limit(MIB)),
        (None, None),
        ("90%", Limit(0.0, "allocated", 0.9)),
        ("reserved=90 %", Limit(0.0, "reserved", 0.9)),
        ("device=75GiB", Limit(75 * GIB, "device_used")),
        ("allocated=20GiB", Limit(20 * GIB)),
    ],
)
def test_a_budget_is_a_size_or_bytes_or_a_share(budget: object, limit: Limit | None) -> None:
    """A number means bytes; a budget is for what is allocated, reserved, or in use on the device."""
    assert limit_of(budget) == limit


@pytest.mark.parametrize(
    ("devices", "keys"),
    [
        ("cuda:0", ("cuda:0",)),
        ("cuda:0, cpu", ("cuda:0", "cpu")),
        (["cuda:0", "cpu"], ("cuda:0", "cpu")),
        (None, ()),
        ("", ()),
        ((), ()),
    ],
)
def test_devices_are_one_text_or_several(devices: object, keys: tuple[str, ...]) -> None:
    """Devices are given as one text or as several; none means all."""
    assert device_keys(devices) == keys
    assert WatchOptions(devices=devices).devices == keys  # type: ignore[arg-type]


def test_every_field_is_an_option_that_is_taken_by_keyword() -> None:
    """Fields, options and keywords have the same names in the same order, each with its sentences."""
    assert [one.name for one in fields(WatchOptions)] == list(OPTIONS)
    assert list(get_type_hints(WatchKeywords)) == list(OPTIONS)
    assert [name for name, one in OPTIONS.items() if not (one.help and one.argument["help"])] == []


@pytest.mark.parametrize("name", OPTIONS)
def test_a_default_is_what_is_written_in_python(name: str) -> None:
    """A default is already what the option would be understood as."""
    assert getattr(WatchOptions(), name) == OPTIONS[name].default


TAKE = [hfmem_widget.watch, hfmem_widget.MemoryCallback, hfmem_widget.WatchOptions]


@pytest.mark.parametrize("function", TAKE)
def test_what_takes_options_shows_each_with_its_default(function: Callable[..., object]) -> None:
    """Each option is in the signature and in the docstring, where nothing is left of the asterisks."""
    parameters = inspect.signature(function).parameters
    doc = function.__doc__ or ""

    for name, one in OPTIONS.items():
        assert parameters[name].default == one.default
        written = rf"^{name} : .+\n    {re.escape(one.help[:40])}"
        assert len(re.findall(written, doc, re.MULTILINE)) == 1
    assert "**" not in doc
    assert all(one.kind is not one.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize("function", [hfmem_widget.watch, hfmem_widget.MemoryCallback])
def test_an_unknown_option_is_refused_with_a_suggestion(function: Callable[..., object]) -> None:
    """All options are named where none is similar."""
    with pytest.raises(OptionError, match=r"\(\) has no option budgt; did you mean budget\?"):
        function(budgt="20GiB")
    with pytest.raises(
        OptionError, match=r"has no option zzz; it has label, interval, .*memory_map"
    ):
        function(zzz=1)


def test_a_callback_takes_options_one_by_one_or_together() -> None:
    """An option by name goes before the same one of the object."""
    together = WatchOptions(label="a", budget=GIB)
    callback = hfmem_widget.MemoryCallback(options=together, label="b", devices="cpu", chart=False)

    assert callback.options == WatchOptions("b", budget=GIB, devices=("cpu",), chart=False)
    assert hfmem_widget.MemoryCallback().options == WatchOptions()

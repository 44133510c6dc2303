"""What can be configured, and what is said about the rest."""

from __future__ import annotations

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


@pytest.mark.parametrize("interval", [0, -1, 0.001, 4000, float("nan"), float("inf"), True, "0.1"])
def test_an_impossible_interval_is_refused(interval: object) -> None:
    """The message says what it must be, and what was given."""
    message = f"interval must be a number of seconds from 0.01 to 3600, not {interval!r}"
    with pytest.raises(OptionError, match=f"^{re.escape(message)}$"):
        WatchOptions(interval=interval)  # type: ignore[arg-type]


def test_an_option_error_is_a_value_error() -> None:
    """Code that expects Python's own error for a bad value gets it."""
    assert issubclass(OptionError, ValueError)


def test_an_unknown_device_is_named_with_those_there_are() -> None:
    """The message lists what could have been asked for."""
    options = WatchOptions(devices=("cuda:9",))

    with pytest.raises(OptionError, match=r"'cuda:9' here; there is cuda:0, cpu"):
        options.check_devices(("cuda:0", "cpu"))


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("gpu", "no device 'gpu'; the first GPU is called 'cuda:0'"),
        ("cuda", "is called 'cuda:0'"),
        ("zz", "no device 'zz'; they are called 'cpu', 'cuda:0'"),
    ],
)
def test_what_no_device_is_called_is_refused_when_a_watch_is_made(device: str, says: str) -> None:
    """Before it is known which devices there are."""
    with pytest.raises(OptionError, match=re.escape(says)):
        WatchOptions(devices=("cpu", device))


def test_a_label_is_plain_text() -> None:
    """Control and bidi characters go, and ten thousand characters are cut."""
    assert WatchOptions(label="a\u202e\nb").label == "a b"
    assert len(WatchOptions(label="x" * 10_000).label) == 120


@pytest.mark.parametrize("phases", ["none", "", 4, None, True, ["all"]])
def test_phases_are_measured_on_all_steps_or_on_as_many_as_are_affordable(phases: object) -> None:
    """Anything else is refused, and the message says what there is."""
    with pytest.raises(OptionError, match="phases must be 'auto' or 'all'"):
        WatchOptions(phases=phases)  # type: ignore[arg-type]
    assert (WatchOptions().phases, WatchOptions(phases="all").phases) == ("auto", "all")


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        ("20GiB", 20 * GIB),
        ("1.5 mib", 1.5 * MIB),
        (str(2**30), GIB),
        (2**30, GIB),
        (MIB, MIB),
        (None, None),
    ],
)
def test_a_budget_is_a_size_or_bytes(budget: object, size: float | None) -> None:
    """As text with its unit, or as a number, which is bytes."""
    assert limit_of(budget) == (None if size is None else Limit(size))


@pytest.mark.parametrize(
    ("budget", "limit"),
    [
        ("90%", Limit(0.0, "allocated", 0.9)),
        ("reserved=90 %", Limit(0.0, "reserved", 0.9)),
        ("device=75GiB", Limit(75 * GIB, "device_used")),
        ("allocated=20GiB", Limit(20 * GIB)),
    ],
)
def test_a_budget_may_be_a_share_and_of_something_else(budget: str, limit: Limit) -> None:
    """A share of the device, of what is allocated, reserved, or in use on the device."""
    assert limit_of(budget) == limit


@pytest.mark.parametrize("budget", ["0.5%", "101%", "ninety%", "cache=90%", "nan%"])
def test_a_share_that_cannot_be_is_refused(budget: str) -> None:
    """And a metric that no budget is of."""
    with pytest.raises(OptionError, match="budget"):
        WatchOptions(budget=budget)


@pytest.mark.parametrize(
    "budget", ["20", 20, 0, -GIB, 1e5, float("nan"), float("inf"), True, [GIB], 10**400]
)
def test_a_budget_that_is_a_slip_is_refused(budget: object) -> None:
    """A number without its unit is too small to be meant; what was given is said."""
    with pytest.raises(OptionError, match=r"such as '90%', or bytes, 1 MiB or more, not "):
        WatchOptions(budget=budget)  # type: ignore[arg-type]


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
def test_devices_are_given_in_one_text_or_one_by_one(
    devices: object, keys: tuple[str, ...]
) -> None:
    """None of them means all."""
    assert device_keys(devices) == keys
    assert WatchOptions(devices=devices).devices == keys  # type: ignore[arg-type]


@pytest.mark.parametrize("devices", [0, [0], [None]])
def test_devices_that_are_no_text_are_refused(devices: object) -> None:
    """A device's number is refused with an example of its name."""
    with pytest.raises(OptionError, match="devices must be names such as 'cuda:0' or 'cpu', not"):
        device_keys(devices)


@pytest.mark.parametrize("name", [name for name in OPTIONS if OPTIONS[name].parse is None])
def test_a_switch_is_true_or_false(name: str) -> None:
    """Text such as "no" would count as true."""
    with pytest.raises(OptionError, match=f"^{name} must be True or False, not 'no'$"):
        WatchOptions(**{name: "no"})  # type: ignore[arg-type]


def test_stop_alone_is_refused() -> None:
    """Where there is no budget to cross, `stop` is an error."""
    with pytest.raises(OptionError, match="stop needs a budget"):
        WatchOptions(stop=True)


def test_every_field_is_an_option_that_is_taken_by_keyword() -> None:
    """With the same names in the same order, each with its sentences."""
    assert [one.name for one in fields(WatchOptions)] == list(OPTIONS)
    assert list(get_type_hints(WatchKeywords)) == list(OPTIONS)
    assert [name for name, one in OPTIONS.items() if not (one.help and one.argument["help"])] == []


@pytest.mark.parametrize("name", OPTIONS)
def test_a_default_is_what_is_written_in_python(name: str) -> None:
    """Understanding it leaves it as it is."""
    assert getattr(WatchOptions(), name) == OPTIONS[name].default


TAKE = [hfmem_widget.watch, hfmem_widget.MemoryCallback, hfmem_widget.WatchOptions]


@pytest.mark.parametrize("taker", TAKE)
def test_what_takes_options_shows_each_with_its_default(taker: Callable[..., object]) -> None:
    """In its signature and in its docstring, where nothing is left of the asterisks."""
    parameters = inspect.signature(taker).parameters
    doc = taker.__doc__ or ""

    for name, one in OPTIONS.items():
        assert parameters[name].default == one.default
        assert (
            len(re.findall(rf"^{name} : .+\n    {re.escape(one.help[:40])}", doc, re.MULTILINE))
            == 1
        )
    assert "**" not in doc
    assert all(one.kind is not one.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize("taker", [hfmem_widget.watch, hfmem_widget.MemoryCallback])
def test_an_option_that_there_is_not_is_refused_with_the_one_meant(
    taker: Callable[..., object],
) -> None:
    """Where none comes near, all are named."""
    with pytest.raises(OptionError, match=r"\(\) has no option budgt; did you mean budget\?"):
        taker(budgt="20GiB")
    with pytest.raises(
        OptionError, match=r"has no option zzz; it has label, interval, .*memory_map"
    ):
        taker(zzz=1)


def test_a_callback_takes_options_one_by_one_or_together() -> None:
    """What is given by name stands above what is given together."""
    together = WatchOptions(label="a", budget=GIB)
    callback = hfmem_widget.MemoryCallback(options=together, label="b", devices="cpu", chart=False)

    assert callback.options == WatchOptions("b", budget=GIB, devices=("cpu",), chart=False)
    assert hfmem_widget.MemoryCallback().options == WatchOptions()

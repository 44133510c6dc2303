"""What can be configured, and what is said about the rest."""

from __future__ import annotations

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.options import WatchOptions


@pytest.mark.parametrize(
    "interval", [0, -1, 0.001, 4000, float("nan"), float("inf"), True, "0.1", None]
)
def test_an_impossible_interval_is_refused(interval: object) -> None:
    """The message says what is allowed."""
    with pytest.raises(OptionError, match=r"from 0\.01 to 3600"):
        WatchOptions(interval=interval)  # type: ignore[arg-type]


def test_an_option_error_is_a_value_error() -> None:
    """Code that expects Python's own error for a bad value gets it."""
    assert issubclass(OptionError, ValueError)


def test_an_unknown_device_is_named_with_those_there_are() -> None:
    """The message lists what could have been asked for."""
    options = WatchOptions(devices=("cuda:9",))

    with pytest.raises(OptionError, match=r"'cuda:9' here; there is cuda:0, cpu"):
        options.check_devices(("cuda:0", "cpu"))


def test_a_label_is_plain_text() -> None:
    """Control and bidi characters go, and ten thousand characters are cut."""
    assert WatchOptions(label="a\u202e\nb").label == "a b"
    assert len(WatchOptions(label="x" * 10_000).label) == 120

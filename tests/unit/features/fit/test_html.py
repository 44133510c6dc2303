"""The text of a forecast: its facts, parts and verdicts, for invented forecasts."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.features.fit.model import (
    MOST_ROWS,
    Bound,
    Fit,
    Forecast,
    ForecastPart,
    Room,
    Verdict,
)
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.text import GIB

PARTS = (
    ForecastPart("weights", int(2 * GIB), int(2 * GIB), "shapes", "exact"),
    ForecastPart("optimizer", int(4 * GIB), int(4 * GIB), "a rule", "upper"),
    ForecastPart("gradients", int(GIB), int(2 * GIB), "shapes", "exact"),
    ForecastPart("activations", int(GIB), int(3 * GIB), "a dry run", "estimate"),
    ForecastPart("buffers", 0, 0, "shapes", "exact"),
)
PEAKS = {"forward": int(5 * GIB), "backward": int(8 * GIB), "optimizer": int(7 * GIB)}
FORECAST = Forecast(
    "Llama",
    Setting(batch=4, length=2048, precision="fp32", optimizer=""),
    PARTS,
    int(8 * GIB),
    "backward",
    PEAKS,
    1_500_000,
    1_500_000,
)


def text_of(forecast: Forecast, *verdicts: Verdict, headroom: float = 0.0) -> str:
    return repr(Fit("config", forecast, verdicts, headroom))


def forecast_with(**setting: Any) -> Forecast:
    return replace(FORECAST, setting=replace(FORECAST.setting, **setting))


def facts(forecast: Forecast) -> list[str]:
    return text_of(forecast).splitlines()[0].split(" · ")[1:]


PLAIN = ["1.5 M parameters", "training", "batch 4 \u00d7 2,048", "fp32"]


@pytest.mark.parametrize(
    ("forecast", "more"),
    [
        (forecast_with(), set()),
        (forecast_with(training=False), {"inference"}),
        (forecast_with(accumulation=2), {"2 batches per step"}),
        (forecast_with(checkpointing=True), {"gradient checkpointing"}),
        (forecast_with(quantized="nf4", lora=(8, ())), {"nf4", "LoRA r=8"}),
        (forecast_with(optimizer="adamw"), {"adamw"}),
        (replace(FORECAST, trainable=1_000), {"1 k trained"}),
        (replace(forecast_with(training=False), trainable=1_000), {"inference"}),
    ],
)
def test_only_unusual_settings_are_shown(forecast: Forecast, more: set[str]) -> None:
    """One batch a step, all weights trained and no quantisation are left out."""
    usual = {*PLAIN} - ({"training"} if "inference" in more else set())

    assert {*facts(forecast)} == usual | more


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *((7, "7"), (999, "999"), (1000, "1 k"), (1_500_000, "1.5 M"), (8_030_000_000, "8.03 B")),
        *((999_499, "999 k"), (999_500, "1 M"), (999_600_000, "1 B"), (10**12, "1 T")),
    ],
)
def test_parameters_are_counted_in_thousands(count: int, text: str) -> None:
    """From a thousand on they have three digits; what rounds up to a larger unit has that unit."""
    assert facts(replace(FORECAST, parameters=count, trainable=count))[0] == f"{text} parameters"


def test_the_table_has_a_row_for_each_part() -> None:
    """Each part has its bytes at the peak and in full, and their certainty."""
    stripped = (line.strip() for line in text_of(FORECAST).splitlines()[1:])
    lines = [re.split(r"  +", line) for line in stripped if not line.startswith("\u2500")][:7]
    assert lines == [
        ["at the peak", "in full"],
        ["weights", "(exact: shapes)", "2.00 GiB", "2.00 GiB"],
        ["optimizer states", "(at most: a rule)", "4.00 GiB", "4.00 GiB"],
        ["gradients", "(exact: shapes)", "1.00 GiB", "2.00 GiB"],
        ["activations and temporaries", "(about: a dry run)", "1.00 GiB", "3.00 GiB"],
        ["allocated", "8.00 GiB"],
        ["Peak in the backward pass (forward 5.00 GiB, optimizer 7.00 GiB)."],
    ]


def verdict(free: float, **more: Any) -> str:
    """Return the text for a device with some GiB free."""
    choices = {"held": 0, "fits": True, "largest_batch": 5, "headroom": 0.1} | more
    headroom = choices.pop("headroom")
    room = Room("cuda:0", "H200", 80 * GIB, free * GIB)
    return text_of(FORECAST, Verdict(room, **choices), headroom=headroom).splitlines()[1]


BATCH = "Largest batch"
WHERE = "on cuda:0 H200:"


@pytest.mark.parametrize(
    ("free", "more", "expected"),
    [
        (10, {}, f"Fits {WHERE} needs 8.00 of 9.00 GiB available after 10 % headroom. {BATCH}"),
        (10, {"headroom": 0.0}, f"Fits {WHERE} needs 8.00 of 10.0 GiB available. "),
        (4, {"fits": False, "headroom": 0.0}, "8.00 of 4.00 GiB available, 4.00 GiB too much."),
        (4, {"fits": False, "largest_batch": 0}, ". Not even one row fits."),
        (10, {"held": int(2 * GIB)}, f"Fits {WHERE} needs 6.00 of 9.00 GiB"),
        (10, {"held": int(2 * GIB)}, "; with the 2.00 GiB allocated already, 8.00 GiB in all."),
        (10, {"held": int(9 * GIB)}, f"Fits {WHERE} needs 0.00 MiB of 9.00 GiB"),
        (math.nan, {"fits": None}, f"It is unknown whether it fits {WHERE} its free memory is unknown."),
        (4, {"fits": None, "headroom": 0.0}, "needs more than 8.00 of 4.00 GiB available."),
        (10, {"largest_batch": None}, ". Largest batch unknown."),
        (10, {"largest_batch": MOST_ROWS}, ". At least 1,048,576 rows fit."),
        (10, {"largest_batch": 1}, f". {BATCH} 1 \u00d7 2,048."),
        (10, {"largest_batch": MOST_ROWS - 1}, f". {BATCH} 1,048,575 \u00d7 2,048."),
    ],
)  # fmt: skip
def test_a_verdict_has_its_figures(free: float, more: dict[str, Any], expected: str) -> None:
    """The need, the free memory, the excess, and the number of rows that would fit."""
    assert expected in verdict(free, **more).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("contexts", "size"), [((0.0, 0.0), ""), ((0.5, 0.0), "512.0 MiB"), ((0.5, 0.75), "768.0 MiB")]
)
def test_cudas_context_is_noted_if_not_initialised(contexts: tuple[float, ...], size: str) -> None:
    """The note has the most that any device needs for it."""
    rooms = [Room("cuda:0", "H200", 80 * GIB, 10 * GIB, context=one * GIB) for one in contexts]
    verdicts = (Verdict(room, 0, fits=True, largest_batch=1) for room in rooms)
    text = text_of(FORECAST, *verdicts)

    assert ("not initialised" in text) is bool(size)
    assert f"; {size}" in text or not size


@pytest.mark.parametrize(
    ("name", "title"),
    [("config", "config (Llama)"), ("Llama", "Llama"), ("", "Llama"), ("LlamaConfig", "Llama")],
)
def test_the_model_is_named_once(name: str, title: str) -> None:
    """The heading has the requested name, and the class if that says more."""
    text = repr(Fit(name, FORECAST, (), 0.0, stored="on disk: 3 GiB"))

    assert text.partition(" · ")[0] == title
    assert "\nOn disk: 3 GiB." in text


def forecast_of(*parts: tuple[int, Bound], left_out: tuple[str, ...] = ()) -> Forecast:
    listed = tuple(ForecastPart("weights", size, size, "shapes", bound) for size, bound in parts)
    total = sum(size for size, _ in parts)
    return Forecast("Model", Setting(), listed, total, "backward", left_out=left_out)


@pytest.mark.parametrize(
    ("parts", "low", "high"),
    [
        pytest.param([(1000, "exact")], 1000, 1000, id="exact"),
        pytest.param([(1000, "exact"), (1000, "estimate")], 1940, 2030, id="about"),
        pytest.param([(1000, "exact"), (500, "upper")], 1000, 1500, id="at most"),
        pytest.param([(1000, "estimate"), (500, "upper")], 970, 1522.5, id="both"),
        pytest.param([(1000, "exact"), (0, "estimate")], 1000, 1000, id="nothing is estimated"),
    ],
)
def test_forecasts_have_intervals(parts: list[tuple[int, Bound]], low: float, high: float) -> None:
    """An upper bound may turn out to be zero; an estimate has the errors that were measured."""
    assert forecast_of(*parts).interval == pytest.approx((low, high))


def test_without_upper_bounds_another_moment_has_the_peak() -> None:
    """An optimizer's temporaries may be zero, but the backward pass stays as high."""
    forecast = forecast_of((1000, "exact"), (900, "upper"))
    peaks = {"backward": 1800, "optimizer": 1900}

    assert replace(forecast, moment="optimizer", peaks=peaks).interval == (1800, 1900)


def test_an_interval_is_shown_if_its_ends_differ() -> None:
    """It is in the units of the figures, and is not shown if something is left out."""
    about, exact = forecast_of((4 << 30, "estimate")), forecast_of((4 << 30, "exact"))
    lower = forecast_of((4 << 30, "estimate"), left_out=("activations",))

    assert "between 3.88 GiB and 4.06 GiB" in text_of(about)
    assert math.isnan(lower.interval[1])
    for forecast in (exact, lower):
        assert "expected" not in text_of(forecast)


def test_reserved_memory_is_shown_if_known() -> None:
    """It is below the sum of the parts, as the driver will show it."""
    text = text_of(replace(FORECAST, reserved=int(9 * GIB)))

    assert re.search(r"^allocated +8\.00 GiB\n(.*\n)?reserved +9\.00 GiB$", text, re.MULTILINE)
    assert "reserved" not in text_of(FORECAST)

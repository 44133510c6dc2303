"""The forecast beside the peak of a step of its size."""

from dataclasses import replace
from typing import Any

import pytest

from hfmem_widget.features.fit.beside import Forecasts, remember
from hfmem_widget.features.fit.companion import Fits
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.monitor.process import process_state
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.session import Contents, Recorder, Session
from hfmem_widget.text import GIB
from tests.scenes.stage import Stage

SETTING = Setting(batch=4, length=512, precision="bf16", device="cuda")
FORECAST = Forecast("GPT2LMHeadModel", SETTING, (), int(7 * GIB), "backward", parameters=1000)
REMARK = (
    "%memfit forecast 7.00 GiB for a step with batch 4 \u00d7 512 (bf16, adamw_torch_fused); "
    "step 2 had 7.07 GiB (1.00 % more)."
)


def trained(
    *,
    before: float = 0.0,
    weights: float = 0.0,
    rows: int = 4,
    model: str = "GPT2LMHeadModel",
    tokens: bool = True,
) -> Session:
    """Return a training of two steps, with bytes allocated when it began, some of them of `weights`."""
    stage = Stage("fine-tune", gpus=1)
    stage.hold({"cuda:0": before}, 0.1)
    with stage.span("cell", "fine-tune"):
        stage.session.contents = Contents(modules=(model,), parameters=1000)
        for number in (1, 2):
            with stage.span("step", f"step {number}") as span:
                sizes = {"longest": 512, "tokens": 2048} if tokens else {}
                stage.recorder.count(span.id, {"step": number, "samples": rows, **sizes})
                if weights:
                    stage.find(["cuda:0"], {"weights": weights})
                stage.hold({"cuda:0": (7.5 - number) * GIB if number == 1 else 7.07 * GIB}, 0.5)
                stage.hold({"cuda:0": GIB}, 0.1)
    return stage.finish()


def remark(session: Session, *forecasts: Forecast) -> str:
    for forecast in forecasts:
        remember(forecast)
    span, fits = session.spans[0], Fits()
    fits.begin(shared_monitor(), Recorder(), span)
    fits.report(session, span)
    return session.remarks.get(span.id, "")


def test_a_training_has_its_forecast_beside_its_peak() -> None:
    """The forecast of the size of its steps, and their highest peak; a first step has no states yet."""
    other = replace(FORECAST, setting=replace(SETTING, batch=8), total=int(9 * GIB))
    assert remark(trained(), FORECAST, other) == REMARK


def test_images_are_as_large_as_their_rows() -> None:
    """They have no length in the forecast or in the steps."""
    forecast = replace(FORECAST, setting=replace(SETTING, length=1))
    assert remark(trained(tokens=False), forecast) == REMARK.replace("4 \u00d7 512", "4")


@pytest.mark.parametrize(
    ("run", "forecast"),
    [
        pytest.param({"tokens": False}, {}, id="steps whose length is unknown"),
        pytest.param({"rows": 8}, {}, id="a batch of another size"),
        pytest.param({"model": "BertModel"}, {}, id="another model"),
        pytest.param({"before": GIB}, {}, id="something else was there"),
        pytest.param({"before": GIB, "weights": 0.5 * GIB}, {}, id="the model and something else"),
        pytest.param({}, {"left_out": ("activations",)}, id="a forecast of a part"),
        pytest.param({}, {"setting": replace(SETTING, training=False)}, id="of inference"),
        pytest.param({}, {"setting": replace(SETTING, device="cpu")}, id="without a GPU"),
    ],
)
def test_no_incomparable_forecast_is_shown(run: dict[str, Any], forecast: dict[str, Any]) -> None:
    """The remark is then empty."""
    assert remark(trained(**run), replace(FORECAST, **forecast)) == ""


def test_weights_that_were_unknown_at_the_start_count_as_the_models() -> None:
    """Weights in a function of a script are not known before the training."""
    assert remark(trained(before=GIB, weights=GIB), FORECAST) == REMARK


def test_the_newest_forecasts_are_kept() -> None:
    """Eight are kept, however many were made."""
    for batch in range(1, 20):
        remember(replace(FORECAST, setting=replace(SETTING, batch=batch)))
    assert [each.setting.batch for each in process_state(Forecasts)] == [*range(12, 20)]

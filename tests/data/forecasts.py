"""Forecasts whose options are keyword arguments."""

from typing import Any

from hfmem_widget.features.fit import predict as of_a_model
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.features.fit.setting import Setting


def predict(
    model_or_config: Any, *, partial: bool = False, optimizer: str = "adamw_torch", **choices: Any
) -> Forecast:
    """Return the forecast of a model, by default with PyTorch's AdamW."""
    setting = Setting(optimizer=optimizer, **choices)
    return of_a_model.predict(model_or_config, setting, partial=partial)

"""``hfmem fit``: what a model needs, and whether it fits here."""

import json
from argparse import Namespace
from typing import Any

from hfmem_widget.cli.output import FINE, NO, say
from hfmem_widget.features.fit.api import fit as forecast_of
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.options import options_of


def fit(arguments: Namespace) -> int:
    """Say the forecast; the code is 1 where it fits on no device that is here."""
    given = vars(arguments)
    choices: Any = {name: given[name] for name in options_of(Setting) if name in given}
    fitted = forecast_of(arguments.model, **choices)
    if arguments.json:
        forecast = fitted.forecast
        devices = [
            {
                "device": verdict.room.device,
                "fits": verdict.fits,
                "available": _whole(verdict.room.available),
                "largest_batch": verdict.largest_batch,
            }
            for verdict in fitted.verdicts
        ]
        parts = {part.name: part.bytes for part in forecast.parts}
        moves = [
            {"change": move.name, "code": move.code, "bytes": move.peak, "fits": move.fits}
            | {"cost": move.cost, "largest_batch": move.largest_batch, "longest": move.longest}
            | {"tried": move.tried, "seconds": move.seconds}
            for move in fitted.moves
        ]
        found = {
            "schema": "hfmem.fit/1",
            "bytes": forecast.total,
            "parts": parts,
            "devices": devices,
        }
        say(json.dumps(found | ({"moves": moves} if moves else {})))
    else:
        say(repr(fitted))
    fits = [verdict.fits for verdict in fitted.verdicts]
    return NO if fits and all(each is False for each in fits) else FINE


def _whole(size: float) -> int | None:
    return int(size) if size >= 0 else None

"""The companions of a watch, by its options."""

from __future__ import annotations

from hfmem_widget.display import resolve
from hfmem_widget.features import FEATURES
from hfmem_widget.monitor.companion import Companion
from hfmem_widget.options import WatchOptions
from hfmem_widget.view.screen import Screen


def companions_for(options: WatchOptions, screen: Screen | None = None) -> tuple[Companion, ...]:
    """Return the companions of a watch; `screen` is where it shows itself, if anywhere."""
    return tuple(
        resolve(feature.companion)(options, screen)
        for feature in FEATURES
        if feature.companion and feature.goes_along(options)
    )

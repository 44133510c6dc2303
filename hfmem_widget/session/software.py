"""Which versions of which libraries run in this process."""

from __future__ import annotations

import platform
import sys

from hfmem_widget.text import plain

LIBRARIES = (
    *("hfmem_widget", "torch", "transformers", "accelerate", "peft", "trl", "bitsandbytes"),
    *("deepspeed", "numpy"),
)


def loaded_software() -> dict[str, str]:
    """Return the versions of Python and of those of `LIBRARIES` that are imported; imports nothing."""
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in LIBRARIES}
    plain_versions = {name: plain(version, 40) for name, version in versions.items() if version}
    return {"python": platform.python_version(), **plain_versions}

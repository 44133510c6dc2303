"""What NVML's error codes mean for a person: what happened, what still works, what to do."""

from __future__ import annotations

from enum import IntEnum

from hfmem_widget.text import plain


class Fault(IntEnum):
    """The error codes of ``nvml.h`` that call for something of their own."""

    UNINITIALIZED = 1
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25


LOST = frozenset({Fault.GPU_IS_LOST, Fault.RESET_REQUIRED})
"""The device answers no more until it is reset."""

MISSING = frozenset(
    {Fault.NOT_SUPPORTED, Fault.FUNCTION_NOT_FOUND, Fault.ARGUMENT_VERSION_MISMATCH}
)
"""This driver or device does not have the figure."""

_CLOSED: dict[int | None, str] = {
    Fault.LIBRARY_NOT_FOUND: (
        "No NVIDIA driver found. If this machine has an NVIDIA GPU, install its driver, or start the "
        "container with its GPUs."
    ),
    Fault.DRIVER_NOT_LOADED: (
        "The NVIDIA driver is installed but not running, so device memory is not shown; all other figures "
        "are. nvidia-smi, or a reboot, usually starts it."
    ),
    Fault.LIB_RM_VERSION_MISMATCH: (
        "The NVIDIA driver was updated while running, so device memory is not shown; all other figures are. "
        "Reboot the machine to show it."
    ),
    Fault.NO_PERMISSION: (
        "No permission to query the NVIDIA driver, so device memory is not shown; all other figures are. "
        "Ask an administrator for access to /dev/nvidia*."
    ),
}
_LOST = (
    "The driver lost {device} ({error}): its device memory ends here; "
    "other GPUs are not affected. Reset the GPU, or reboot."
)
_UNREAD: dict[int | None, str] = {
    **dict.fromkeys(LOST, _LOST),
    Fault.NOT_SUPPORTED: (
        "{device} reports no memory figures. Unless CUDA says that it shares the CPU's memory, device in use "
        "is not shown, only what torch allocates."
    ),
    Fault.NO_PERMISSION: (
        "No permission to read the memory of {device}: device in use is not shown, only what torch "
        "allocates. Ask an administrator for access."
    ),
}


def code_of(error: Exception) -> int | None:
    """Return the error code that an NVML error carries; None for any other error."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else None


def why_closed(error: Exception) -> str:
    """Return why NVML cannot be used at all, in one or two plain sentences with the remedy."""
    if isinstance(error, ImportError):
        return (
            "The package nvidia-ml-py is missing, so device memory is not shown; all other figures are. "
            "Install it with pip install nvidia-ml-py."
        )
    unknown = (
        f"The NVIDIA driver does not answer ({plain(error)}), so device memory is not shown; all other "
        "figures are. Run nvidia-smi for details."
    )
    return _CLOSED.get(code_of(error), unknown)


def why_unread(device: str, error: Exception) -> str:
    """Return why one device's memory cannot be read, in one or two plain sentences with the remedy."""
    unknown = (
        "The driver does not report the memory of {device} ({error}): device in use is not shown "
        "meanwhile, only what torch allocates. Run nvidia-smi for details."
    )
    return _UNREAD.get(code_of(error), unknown).format(device=device, error=plain(error))

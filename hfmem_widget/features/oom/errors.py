"""Errors about memory of PyTorch 2.6 to 2.15 and its libraries, and the figures in their texts.

An error is recognised by its type or the beginning of its text, not by "out of memory" within a sentence or
in a ValueError. Sizes are as exact as the text, which has two decimals. No error is kept.
"""

import errno
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from hfmem_widget.errors import chain_of
from hfmem_widget.session.model import NOT_AVAILABLE

Origin = Literal[
    "cuda", "cuda async", "cuda runtime", "cublas", "cudnn", "nccl", "bitsandbytes", "mps", "xpu", "cpu",
    "numpy", "python", "no batch size", "other",
]  # fmt: skip
"""The library or allocator whose request failed."""

MOST_ERRORS: Final = 16  # errors of a chain that are read
MOST_TEXT: Final = 20_000  # characters that are read
BESIDE_THE_ALLOCATOR: Final[frozenset[Origin]] = frozenset(
    {"cuda runtime", "cublas", "cudnn", "nccl", "bitsandbytes"}
)
"""Libraries that request memory from the driver, and cannot use PyTorch's cache."""

ON_THE_HOST: Final[frozenset[Origin]] = frozenset({"cpu", "numpy", "python"})

_DOUBTFUL: Final = ("CUDNN_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_NOT_INITIALIZED")
"""Reported if a workspace or a handle does not fit, and for other reasons as well."""

_ABSURD: Final = 2.0**63  # some versions write 2**64 - 1 for an unknown size


@dataclass(frozen=True, slots=True)
class OutOfMemoryText:
    """The figures of an error's text; bytes, NaN if it has none."""

    origin: Origin
    device: str = ""  # such as cuda:1; empty if unknown
    asked: float = NOT_AVAILABLE
    total: float = NOT_AVAILABLE  # of the device
    free: float = NOT_AVAILABLE  # on the device
    allowed: float = NOT_AVAILABLE  # what this process may use at most, if a limit is set
    allocated: float = NOT_AVAILABLE  # by PyTorch's tensors
    unallocated: float = NOT_AVAILABLE  # what PyTorch has reserved beyond that
    in_use: float = NOT_AVAILABLE  # by this process, also outside of PyTorch
    processes: tuple[tuple[int, float], ...] = ()  # other processes by the driver's ids
    preemptive: bool = False  # whether a limit stopped the request before it reached the driver
    is_certain: bool = True  # False if the text has other possible causes than memory


_SIZE = r"(\d{1,20}(?:\.\d{0,3})? (?:bytes|[KMGTPE]i?B))"

_OF_NCCL = r"Cuda failure(?: \d+)? 'out of memory'|Failed to CUDA \w+ \d+ bytes"
_OF_THE_HOST = r"DefaultCPUAllocator: (?:can't allocate|not enough) memory"

_GOES_ON = r" (?:error|exception|while|when|allocating|on|during|at|in)\b"

_BEGINNINGS: Final[Mapping[Origin, tuple[str, ...]]] = {
    "cuda": (
        # Without figures it is raised by users' tests, and by those of transformers and accelerate.
        r"(?:CUDA|HIP) out of memory(?:\.|\s*$)",
        r"Allocation was preemptively rejected",
    ),
    "cuda async": (r"Allocation on device \d+ would exceed allowed memory\.",),
    "cuda runtime": (
        r"(?:CUDA|HIP)(?: driver)? error: out of memory",
        r"std::bad_alloc: (?:out_of_memory: )?CUDA error",
    ),
    "cublas": (
        r"(?:CUDA|HIP) error: \w{1,20}_STATUS_ALLOC_FAILED when calling",
        r"CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate",
    ),
    "cudnn": (
        r"(?:cuDNN|MIOpen) error: \w{0,60}ALLOC(?:ATION)?_?FAILED",
        r"cuDNN error: CUDNN_STATUS_NOT_SUPPORTED",
    ),
    "nccl": (rf"(?:\[\w+ ?\d*\]:? )?NCCL (?:error in: |Error \d+: )(?=[\s\S]*(?:{_OF_NCCL}))",),
    "bitsandbytes": (
        r"Error (?:2: )?out of memory at line \d+ in file .{0,200}(?:ops|pythonInterface)\.",
    ),
    "mps": (r"MPS backend out of memory",),
    "xpu": (r"XPU out of memory(?:\.|\s*$)",),
    "cpu": (
        r"CPU out of memory\b",
        r"could not create a memory object",  # oneDNN's
        rf"\[enforce fail at .{{0,300}}\] .{{0,80}}?{_OF_THE_HOST}",
        _OF_THE_HOST,
        r"unable to (?:mmap|open|allocate) .{0,500}Cannot allocate memory \(12\)",
    ),
    "numpy": (r"Unable to allocate (?:array|.{1,40} for an array) with shape",),
    "no batch size": (r"No executable batch size found, reached zero\.",),
    "other": (
        # Texts of other libraries and of mocks: few words precede it, and no noun follows.
        rf"(?:[\w.:-]{{1,30}} ){{0,3}}[Oo]ut of memory(?:(?! ?[\w'])|{_GOES_ON})",
        r"RESOURCE_EXHAUSTED: ",
        r"FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed",
    ),
}

_SIZES: Final[Mapping[str, tuple[re.Pattern[str], ...]]] = {
    name: tuple(re.compile(pattern.replace("SIZE", _SIZE)) for pattern in patterns)
    for name, patterns in {
        "asked": (
            r"[Tt]r(?:ied|ying) to allocate SIZE", r"Requested +: SIZE", r"Requested size: SIZE",
            r"Unable to allocate SIZE", r"Failed to CUDA \w+ SIZE", r"unable to mmap SIZE",
        ),
        "total": (r"total capacity of SIZE", r"Device limit +: SIZE"),
        "free": (r"of which SIZE is free", r"Free \(according to CUDA\): SIZE"),
        "allowed": (
            r"(?<!max )SIZE allowed; ", r"max allowed: SIZE",
            r"PyTorch limit \(set by user-supplied memory fraction\)\s{0,80}: SIZE",
        ),
        "allocated": (
            r"SIZE is allocated by PyTorch", r"Currently allocated +: SIZE", r"MPS allocated: SIZE",
            r"SIZE allocated by PyTorch, with",
        ),
        "unallocated": (r"SIZE is reserved by PyTorch but unallocated",),
        "in_use": (r"this process has SIZE memory in use",),
    }.items()
}  # fmt: skip

_DEVICES: Final = re.compile(r"GPU (\d{1,4}) has a total"), re.compile(r"on device (\d{1,4}) ")
_PROCESS: Final = re.compile(rf"Process (\d{{1,10}}) has {_SIZE} memory in use")
_CAUGHT: Final = re.compile(r"Caught \w{1,80} in .{1,200}\.\s{1,4}Original Traceback")
_RAISED: Final = re.compile(r"^(?:[\w.]{1,100}(?:Error|Exception)): (.*)", re.MULTILINE | re.DOTALL)

_UNITS: Final = {
    "bytes": 1.0,
    **{f"{unit}B": 1024.0 ** (at + 1) for at, unit in enumerate("KMGTPE")},
}


def about_memory(error: BaseException | None) -> tuple[BaseException, OutOfMemoryText] | None:
    """Return the error about memory in a chain, and the figures of its text; the error must not be kept.

    The type decides for ``torch.OutOfMemoryError`` and ``MemoryError``. A ``RuntimeError`` (all that cuBLAS,
    NCCL and the CPU allocator raise) and an ``OSError`` count by the beginning of their texts.
    """
    for cause in islice(chain_of(error, with_suppressed=False), MOST_ERRORS):
        if (error_text := _read(cause)) is not None:
            return cause, error_text
    return None


def _read(error: BaseException) -> OutOfMemoryText | None:
    kinds = [(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__]
    by_type = OutOfMemoryText("cuda") if ("torch", "OutOfMemoryError") in kinds else None
    if isinstance(error, MemoryError):
        by_type = OutOfMemoryText("python", "cpu")
    elif isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return OutOfMemoryText("python", "cpu")
    if by_type is None and not isinstance(error, RuntimeError):
        return None
    try:
        error_text = read_text(str(error))
    except Exception:  # noqa: BLE001  (an error of the user's may not be able to say what it is)
        return by_type
    # CuPy's is a MemoryError as well, and of a GPU.
    is_known = by_type is not None and not any(module == "cupy" for module, _ in kinds)
    return (
        by_type if error_text is None or (is_known and error_text.origin == "other") else error_text
    )


def read_text(text: str) -> OutOfMemoryText | None:
    """Return the figures of an error's text; None if its beginning is not that of an error about memory."""
    text = text[:MOST_TEXT].strip()
    # A thread or a worker passes the original error's text on with its traceback.
    if _CAUGHT.match(text) and (raised := _RAISED.findall(text)):
        text = raised[-1].strip()
    origin = next(
        (name for name, texts in _BEGINNINGS.items() if any(re.match(one, text) for one in texts)),
        None,
    )
    if origin is None:
        return None
    figures = {
        name: (_bytes(match[1]) for pattern in patterns if (match := pattern.search(text)))
        for name, patterns in _SIZES.items()
    }
    sizes = {name: next(values, NOT_AVAILABLE) for name, values in figures.items()}
    return OutOfMemoryText(
        origin=origin,
        device=_device(origin, text),
        processes=tuple((int(pid), _bytes(size)) for pid, size in _PROCESS.findall(text)),
        preemptive="preemptively rejected" in text,
        is_certain=not any(status in text for status in _DOUBTFUL),
        **sizes,
    )


def _device(origin: Origin, text: str) -> str:
    if origin in ON_THE_HOST:
        return "cpu"
    kind = origin if origin in {"mps", "xpu"} else "cuda"
    numbers = (match[1] for pattern in _DEVICES if (match := pattern.search(text)))
    number = next(numbers, "0" if origin == "mps" else "")
    return f"{kind}:{number}" if number else ""


def _bytes(size: str) -> float:
    number, _, unit = size.partition(" ")
    value = float(number) * _UNITS[unit.replace("i", "")]
    return value if value < _ABSURD else NOT_AVAILABLE

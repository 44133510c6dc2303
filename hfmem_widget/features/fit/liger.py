"""Liger's kernels in dry runs, and other kernels of Triton.

The Python code around a kernel makes the tensors that it reads and writes. That code runs on the meta device
as it is; launching the kernel itself does nothing there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from types import FrameType
from typing import Any, Final

import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.setting import errors_as
from hfmem_widget.text import plain

_PACKAGE: Final = "liger_kernel"


@contextmanager
def kernels_on_meta() -> Iterator[None]:
    """Let launches of Triton's kernels with meta tensors do nothing; other launches stay as they are."""
    kernels = getattr(sys.modules.get("triton.runtime.jit"), "KernelInterface", None)
    if kernels is None:
        yield
        return
    of_grid = kernels.__getitem__

    def on_meta_too(kernel: Any, grid: Any) -> Any:
        launch = of_grid(kernel, grid)

        def run(*args: Any, **kwargs: Any) -> Any:
            is_on_meta = any(getattr(one, "is_meta", False) for one in (*args, *kwargs.values()))
            return None if is_on_meta else launch(*args, **kwargs)

        return run

    kernels.__getitem__ = on_meta_too
    try:
        yield
    finally:
        kernels.__getitem__ = of_grid


def adds_in_place(frame: FrameType, product: torch.Tensor) -> bool:
    """Return whether the code that asked for a product adds it to a sum in one operation on a GPU.

    Liger sums the gradient of a head over parts of a batch. It asks for the type of the device first
    (`fused_linear_cross_entropy_forward` of liger_kernel/ops/fused_linear_cross_entropy.py, from 0.7 on).
    """
    code, module = frame.f_code, frame.f_globals.get("__name__", "")
    is_summed = module.startswith(f"{_PACKAGE}.ops.") and "get_device_capability" in code.co_names
    if not is_summed or product.element_size() != 2:
        return False
    return not torch.cuda.is_initialized() or torch.cuda.get_device_capability()[0] >= 8


def has_liger(model: Any) -> bool:
    """Return whether a model runs Liger's kernels, as with ``use_liger_kernel=True``."""
    return any(_of_liger(forward) for forward in map(forward_of, model.modules()))


def forward_of(module: Any) -> Any:
    """Return a module's own `forward`, without what accelerate wraps around it."""
    return inspect.unwrap(vars(module).get("forward") or type(module).forward)


def _of_liger(forward: Any) -> bool:
    return getattr(forward, "__module__", "").partition(".")[0] == _PACKAGE


def without_wrappers(module: Any) -> None:
    """Remove a module's own `forward`, except Liger's, which is bound to the module anew.

    That of accelerate hides the one of the class: it has autocast, and hooks that move tensors.
    """
    forward = forward_of(module)
    if vars(module).pop("forward", None) is not None and _of_liger(forward):
        module.forward = getattr(forward, "__func__", forward).__get__(module)


def can_have_liger(model: Any) -> bool:
    """Return whether Liger is installed and has kernels for this class of models.

    Its import initialises CUDA, so it is only imported where that is done.
    """
    is_new = _PACKAGE not in sys.modules
    if is_new and (find_spec(_PACKAGE) is None or not torch.cuda.is_initialized()):
        return False
    kind = getattr(getattr(model, "config", None), "model_type", "")
    with suppress(Exception):  # such as that of a triton that cannot be imported
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

        return kind in MODEL_TYPE_TO_APPLY_LIGER_FN
    return False


def give_liger(model: Any) -> None:
    """Replace the kernels of a model by Liger's, as a Trainer does; raise OptionError if that is impossible.

    Liger also replaces names in the modules of transformers; these are restored.
    """
    if has_liger(model):
        return
    base = getattr(model, "get_base_model", lambda: model)()
    name = plain(type(base).__name__)
    if not can_have_liger(base):
        needs = f"liger-kernel, CUDA in use, and Liger's support for {name}"
        raise OptionError(f"Liger's kernels need {needs}")
    names = {type(module).__module__ for module in base.modules()}
    modules = {sys.modules[name] for name in names if name.startswith("transformers.")}
    classes = {one for module in modules for one in vars(module).values() if isinstance(one, type)}
    before: list[tuple[Any, str, Any]]
    before = [(one, name, value) for one in modules for name, value in vars(one).items()]
    before += [(one, "forward", vars(one)["forward"]) for one in classes if "forward" in vars(one)]
    try:
        with errors_as(f"Liger's kernels cannot be given to {name}"):
            from liger_kernel.transformers import _apply_liger_kernel_to_instance

            _apply_liger_kernel_to_instance(model=base)
    finally:
        for owner, name, value in before:
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)

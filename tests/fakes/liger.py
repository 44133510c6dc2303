"""A stand-in for Liger's kernels, for Llama: the code around the kernels, which themselves need a GPU.

It is loaded as a module of `liger_kernel.ops`, as the place of the code decides how it is read.
"""

import importlib.util
import sys
from types import MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch


class KernelInterface:
    """Triton's: a kernel is launched by a grid in square brackets."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.run

    def run(self, *tensors: torch.Tensor) -> None:
        if any(tensor.is_meta for tensor in tensors):
            raise ValueError("Pointer argument cannot be accessed from Triton (cpu tensor?)")
        tensors[0].add_(1)


kernel = KernelInterface()


class FusedLoss(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed, so its classes are Any
    """The loss of half of the rows after the other, with the gradients made in the forward pass."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        of_rows, of_weight = torch.zeros_like(rows), torch.zeros_like(weight)
        for part, of_part in zip(rows.chunk(2), of_rows.chunk(2), strict=True):
            logits = part @ weight.t()
            kernel[(len(part),)](logits)
            of_part[:] = logits @ weight
            is_on_gpu = weight.device.type == "cuda"
            if is_on_gpu and torch.cuda.get_device_capability(weight.device)[0] >= 8:
                torch.addmm(of_weight, logits.t(), part, out=of_weight)
            else:
                of_weight += torch.mm(logits.t(), part).float()
            del logits
        ctx.save_for_backward(of_rows, of_weight)
        return rows.new_zeros((), dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if not torch.equal(grad, torch.tensor(1.0, device=grad.device)):
            kernel[(1,)](ctx.saved_tensors[0])
        return ctx.saved_tensors


def lce_forward(model: Any, input_ids: Any, labels: Any = None, **given: Any) -> Any:
    states = model.model(input_ids=input_ids, **given).last_hidden_state
    return {"loss": FusedLoss.apply(states.flatten(0, 1), model.lm_head.weight)}


def _apply_liger_kernel_to_instance(model: Any) -> None:
    vars(sys.modules[type(model).__module__])["apply_rotary_pos_emb"] = None
    type(model.model).forward = lce_forward
    model.forward = MethodType(lce_forward, model)


def install(monkeypatch: Any) -> ModuleType:
    """Let Liger and Triton be imported; return the stand-in."""
    spec = importlib.util.spec_from_file_location("liger_kernel.ops.stand_in", __file__)
    assert spec is not None
    assert spec.loader is not None
    stand_in = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stand_in)
    types = SimpleNamespace(MODEL_TYPE_TO_APPLY_LIGER_FN={"llama": None})
    for name, module in {
        "liger_kernel": stand_in,
        "liger_kernel.transformers": stand_in,
        "liger_kernel.transformers.monkey_patch": types,
        "triton.runtime.jit": stand_in,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return stand_in

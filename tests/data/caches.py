"""All existing caches of keys and values, by what the collector can reach, and our figures for them."""

import gc
from typing import Any

import torch
import transformers
from transformers import Cache, StoppingCriteria

import hfmem_widget
from hfmem_widget.session import Session


def owned(*roots: object, device: str = "") -> int:
    """Return the bytes of all tensors that some objects own, on one device if it is given."""
    sizes: dict[int, int] = {}
    seen: set[int] = set()
    todo: list[Any] = list(roots)
    elsewhere = (type, torch.nn.Module, transformers.PretrainedConfig)
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, elsewhere):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            if not device or str(storage.device) == device:
                sizes[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, (list, tuple, dict)) or hasattr(one, "__dict__"):
            todo += gc.get_referents(one)
    return sum(sizes.values())


def alive() -> list[object]:
    """Return all existing caches, of whatever type."""
    older = getattr(transformers.models.mamba.modeling_mamba, "MambaCache", None)
    kinds, todo = set(), [Cache, *([older] if older else [])]
    while todo:
        kind = todo.pop()
        kinds.add(kind)
        todo += kind.__subclasses__()
    return [one for one in gc.get_objects() if type(one) in kinds]


class Look(StoppingCriteria):  # type: ignore[misc]  # transformers is not checked here
    """Reads our figures of the KV caches on a device after every step, and the bytes that they own there."""

    session: Session

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.ours: list[float] = []
        self.theirs: list[int] = []

    def __call__(self, ids: Any, _scores: Any, **_: Any) -> Any:
        with hfmem_widget.span("look"):
            pass
        look = [span for span in self.session.spans if span.label == "look"][-1]
        self.ours.append(self.session.value(look.before, f"{self.device}/kv_cache"))
        self.theirs.append(owned(*alive(), device=self.device))
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

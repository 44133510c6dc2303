"""Snapshots of an allocator in the form in which torch 2.1 to 2.13 dumps them."""

import pickle
from collections.abc import Sequence
from typing import Any

_POOL = [0, 0]

Line = tuple[str, int, str]
"""File, line and function of a frame."""


class Allocations:
    """An allocator that records its history, as torch's does: frames and stacks are shared objects."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.events: list[dict[str, Any]] = []
        self.live: dict[int, tuple[int, list[dict[str, Any]]]] = {}
        self.now = 1_790_000_000_000_000  # microseconds
        self._frames: dict[Line, dict[str, Any]] = {}
        self._stacks: dict[tuple[Line, ...], list[dict[str, Any]]] = {}
        self._next = 0x7F00_0000_0000
        self._most = most

    def alloc(self, size: int, *stack: Line) -> int:
        """Allocate a block from a stack, innermost frame first; return its address."""
        address, self._next = self._next, self._next + _whole(size)
        frames = self._stacks.get(stack)
        if frames is None:
            frames = self._stacks[stack] = [self._frame(line) for line in stack]
        self.live[address] = size, frames
        self._record("alloc", address, size, frames)
        return address

    def free(self, address: int) -> None:
        """Free a block; its two events have the stack that allocated it."""
        size, frames = self.live.pop(address)
        self._record("free_requested", address, size, frames)
        self._record("free_completed", address, size, frames)

    def forget(self) -> None:
        """Start a new recording: live blocks are from before it, and have no stack."""
        self.events.clear()
        self.live = {address: (size, []) for address, (size, _) in self.live.items()}

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * 1e6)

    def snapshot(self) -> dict[str, Any]:
        """Return it in the form of `torch.cuda.memory._snapshot`."""
        return {
            "segments": [_segment(at, *block) for at, block in self.live.items()],
            "device_traces": [self.events[-self._most :]],
            "allocator_settings": {
                "PYTORCH_CUDA_ALLOC_CONF": "",
                "garbage_collection_threshold": 0.0,
                "expandable_segments": False,
                "roundup_power2_divisions": {"1": 0, ">": 0},
            },
            "external_annotations": [],
        }

    def dump(self, protocol: int = 4) -> bytes:
        """Return the snapshot in the form of `torch.cuda.memory._dump_snapshot`."""
        return pickle.dumps(self.snapshot(), protocol=protocol)

    def _frame(self, line: Line) -> dict[str, Any]:
        named = dict(zip(("filename", "line", "name"), line, strict=True))
        return self._frames.setdefault(line, named)

    def _record(self, action: str, address: int, size: int, frames: Sequence[Any]) -> None:
        self.now += 7
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.now}
        # torch makes these texts and pairs anew for each event.
        made = {"compile_context": b"N/A".decode(), "user_metadata": "", "frames": frames}
        self.events.append(event | made | {"segment_pool_id": tuple(_POOL)})


def _whole(size: int) -> int:
    return -(-size // 512) * 512


def _segment(address: int, size: int, frames: Sequence[Any]) -> dict[str, Any]:
    whole = _whole(size)
    block = {"address": address, "size": whole, "requested_size": size, "state": "active_allocated"}
    return {
        "device": 0,
        "address": address,
        "total_size": whole,
        "allocated_size": whole,
        "active_size": whole,
        "requested_size": size,
        "stream": 0,
        "segment_type": "small" if size <= 1 << 20 else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": frames,
        "blocks": [block | {"frames": frames}],
    }


_PACKAGES = "/home/user/env/lib/python3.12/site-packages"
_MODEL = f"{_PACKAGES}/transformers/models/bert/modeling_bert.py"
CELL = ("/tmp/ipykernel_7/12.py", 4, "<module>")
_LOSS = ("/home/user/project/train.py", 61, "training_step")
_STEP = (f"{_PACKAGES}/torch/optim/adamw.py", 220, "AdamW.step")
_BATCH = ("/home/user/project/data.py", 18, "collate")
_ENGINE = (f"{_PACKAGES}/torch/autograd/graph.py", 829, "_engine_run_backward")
_LOAD = ("/home/user/project/train.py", 22, "load")


def training(steps: int = 4, layers: int = 12) -> Allocations:
    """Return the history of a small training: weights, activations, gradients, states, a list that grows."""
    made, mib = Allocations(), 1 << 20
    for layer in range(layers):
        made.alloc(9 * mib + 512 * layer, (_MODEL, 30 + layer, "BertModel.__init__"), _LOAD, CELL)
        made.wait(0.01)
    made.forget()
    kept = states = 0
    for step in range(steps):
        batch = made.alloc(6 * mib, _BATCH, _LOSS, CELL)
        forward = []
        for layer in range(layers):
            made.wait(0.012)
            part = ("Self", "Inter", "Out")[layer % 3]
            place = _MODEL, 290 + layer % 3 * 40, f"Bert{part}.forward"
            forward += [made.alloc(size * mib, place, _LOSS, CELL) for size in (14, 5)]
            made.free(made.alloc(11 * mib + 3, (_MODEL, 301, "BertSelf.forward"), _LOSS, CELL))
        gradients = []
        for address in reversed(forward):
            made.wait(0.009)
            made.free(address)
            gradients += [made.alloc(4 * mib + 100, _ENGINE, _LOSS, CELL)]
        if not states:
            states = made.alloc(88 * mib, _STEP, _LOSS, CELL)
        made.wait(0.05)
        for address in (*gradients, batch):
            made.free(address)
        kept = made.alloc(17 * mib + kept % 7, ("/home/user/project/train.py", 77, "log"), CELL)
        made.wait(0.03 * step)
    return made

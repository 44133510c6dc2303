"""What of a real step's peak a forecast does not have: live tensors, by the operation that made them.

A step of an architecture of `forecasts.py` runs on a GPU, each operation surrounded by the allocator's
counters: so what a kernel takes while it runs is listed beside its results, and the same of the dry run.
With ``--small`` the real step runs on the CPU, where only tensors are counted.
"""

import argparse
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import torch
import transformers
from common.architectures import CASES, Case, built, config_of, loss_of, smaller
from common.checked import Checked
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hfmem_widget.features.fit import dry_run
from hfmem_widget.features.fit.allocator import round_up
from hfmem_widget.features.fit.live_bytes import LiveBytes, storage_id
from hfmem_widget.features.fit.predict import predict
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.trial import real_batch
from hfmem_widget.features.fit.workspaces import within

MIB: Final = 2**20
LEAST: Final = MIB // 4
Kind = tuple[str, int]
"""The operation that made a storage, and its bytes."""


@dataclass
class Moments:
    """What was alive at the highest moment, and what operations took besides their results."""

    most: float = 0.0
    at: str = ""
    alive: Counter[Kind] = field(default_factory=Counter)
    at_peak: Counter[Kind] = field(default_factory=Counter)
    besides: dict[str, tuple[int, float]] = field(default_factory=dict)
    unseen: float = 0.0  # at that moment: allocated, but of no tensor that an operation returned
    phase: str = ""

    def made(self, kind: Kind, storage: Any) -> None:
        """Take in a new storage until it is freed."""
        self.alive[kind] += 1
        weakref.finalize(storage, self.freed, kind)

    def freed(self, kind: Kind) -> None:
        """Forget a storage."""
        self.alive[kind] -= 1

    def ran(self, name: str, peak: float, besides: float, held: float) -> None:
        """Take in an operation that has run."""
        if besides > LEAST:
            count, most = self.besides.get(name, (0, 0.0))
            self.besides[name] = (count + 1, max(most, besides))
        if peak > self.most:
            self.most, self.at = peak, f"{self.phase}: {name}"
            self.at_peak = +self.alive
            self.unseen = held - sum(size * count for (_, size), count in self.alive.items())


def text_of(func: Any, args: Any) -> str:
    """Return an operation with the shapes it was given."""
    shapes = [f"{tuple(one.shape)}" for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
    return f"{func} {' '.join(shapes[:4])}"


class Dry(LiveBytes):
    """The forecast's own count, noted."""

    moments = Moments()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation, and note it."""
        before, known = self.now, set(self._storages)
        out = super().__torch_dispatch__(func, types, args, kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor) and leaf.is_meta:
                storage = leaf.untyped_storage()
                if storage_id(leaf) not in known and storage_id(leaf) in self._storages:
                    known.add(storage_id(leaf))
                    size = round_up(storage.nbytes(), self._granularity)
                    self.moments.made((str(func), size), storage)
        besides = within(func, args)
        high = max(before, self.now) + besides
        self.moments.ran(text_of(func, args), high, besides, self.now)
        return out


class Real(TorchDispatchMode):
    """A device's own count, noted."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.moments = Moments()
        self._granularity = dry_run.GRANULARITY[device]
        self._on_gpu = device == "cuda"
        self._known: set[int] = set()
        self._base = self._allocated()

    def _allocated(self) -> float:
        return float(torch.cuda.memory_allocated()) if self._on_gpu else 0.0

    def leave_out(self, tensors: Any) -> None:
        """Do not count tensors that were there before."""
        self._known |= {storage_id(one) for one in tensors}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do an operation, and note it."""
        before = self._allocated()
        if self._on_gpu:
            torch.cuda.reset_peak_memory_stats()
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            is_there = isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"
            if is_there and storage_id(leaf) not in self._known:
                storage, key = leaf.untyped_storage(), storage_id(leaf)
                self._known.add(key)
                self.moments.made(
                    (str(func), round_up(storage.nbytes(), self._granularity)), storage
                )
                weakref.finalize(storage, self._known.discard, key)
        after = self._allocated()
        if self._on_gpu:
            peak = float(torch.cuda.max_memory_allocated())
        else:
            after = peak = sum(size * count for (_, size), count in self.moments.alive.items())
        besides = peak - max(before, after)
        self.moments.ran(text_of(func, args), peak - self._base, besides, after - self._base)
        return out


def real_step(case: Case, config: Any, device: str) -> tuple[Moments, float, float]:
    """Run steps; return what the third was made of, what it began with, and the peak of the second."""
    model, batch = built(case, config, device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    clean = 0.0
    for number in range(3):
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        mode = Real(device)
        mode.leave_out([*model.parameters(), *model.buffers()])
        mode.leave_out(
            one
            for state in optimizer.state.values()
            for one in state.values()
            if isinstance(one, torch.Tensor)
        )
        if number < 2:
            given = real_batch(batch, device)
            with Checked():
                loss = loss_of(case, model, given, device)
            loss.backward()
            clean = float(torch.cuda.max_memory_allocated()) if device == "cuda" else 0.0
        else:
            with mode:
                mode.moments.phase = "forward"
                given = real_batch(batch, device)
                with Checked():
                    loss = loss_of(case, model, given, device)
                mode.moments.phase = "backward"
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss, given
    return mode.moments, mode._base, clean  # noqa: SLF001


def print_moments(name: str, moments: Moments) -> None:
    """Print where a count was highest, and what operations took besides their results."""
    print(f"\n{name}: {moments.most / MIB:,.2f} MiB above what a step begins with, in {moments.at}")
    print(f"  of no tensor that an operation returned: {moments.unseen / MIB:,.2f} MiB")
    print("  operations that took more than their results, most first:")
    for text, (count, most) in sorted(moments.besides.items(), key=lambda one: -one[1][1])[:15]:
        print(f"    {most / MIB:10,.2f} MiB  {count:4d} x  {text}")


def explain(case: Case, *, small: bool) -> None:
    """Print what the two have that the other has not."""
    device = "cpu" if small else "cuda"
    config = config_of(case, small=small)
    Dry.moments = Moments(phase="step")
    dry_run.LiveBytes = Dry  # type: ignore[misc]
    dry = predict(
        config,
        Setting(
            batch=case.batch,
            length=case.length,
            precision=case.precision,
            device=device,
            **case.options,
        ),
    )
    dry_run.LiveBytes = LiveBytes  # type: ignore[misc]
    real, base, clean = real_step(case, config, device)
    parts = {part.name: round(part.bytes / MIB, 2) for part in dry.parts}
    print(f"\n=== {case.name}: forecast {dry.total / MIB:,.2f} MiB at the {dry.moment}, {parts}")
    print(
        f"real: {clean / MIB:,.2f} MiB without our counting; a step begins with {base / MIB:,.2f}"
    )
    print_moments("real", real)
    print_moments("forecast", Dry.moments)
    for label, ours in (
        ("only in the real step", real.at_peak - Dry.moments.at_peak),
        ("only in the forecast", Dry.moments.at_peak - real.at_peak),
    ):
        total = sum(size * count for (_, size), count in ours.items())
        print(f"\n{label}, at the peak: {total / MIB:,.2f} MiB")
        ordered = sorted(ours.items(), key=lambda one: -one[0][1] * one[1])
        for (operation, size), count in ordered[:30]:
            if size * count >= LEAST:
                print(f"  {size * count / MIB:10,.2f} MiB  {count:4d} x {size:,} B  {operation}")


def main() -> None:
    """Explain each of the architectures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("types", nargs="+", metavar="TYPE", help="model types of forecasts.py")
    parser.add_argument("--small", action="store_true", help="small models on the CPU")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for each in CASES:
        if each.type in arguments.types and each.options.get("training", True):
            explain(smaller(each) if arguments.small else each, small=arguments.small)


if __name__ == "__main__":
    main()

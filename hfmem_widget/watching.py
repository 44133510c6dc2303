"""``hfmem_widget.watch``: of a block, a function, a model, a Trainer.

The module is not called ``watch`` because the function is, and a package cannot hold both names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hfmem_widget.errors import OptionError
from hfmem_widget.faults import harmless
from hfmem_widget.interrupts import interrupts_deferred
from hfmem_widget.labels import plain
from hfmem_widget.monitor import shared_monitor
from hfmem_widget.optimizers import follow_optimizers
from hfmem_widget.options import WatchOptions
from hfmem_widget.session import Session
from hfmem_widget.stretch import Follow, Watch, running_shell
from hfmem_widget.units import parse_bytes
from hfmem_widget.view.screen import Screen

if TYPE_CHECKING:
    import torch
    from transformers import Trainer


def watch(
    subject: str | torch.nn.Module | Trainer = "",
    optimizer: torch.optim.Optimizer | None = None,
    *,
    label: str = "",
    interval: float = 0.1,
    devices: Sequence[str] = (),
    chart: bool = True,
    panel: bool = True,
    quiet: bool = False,
    ledger: bool = True,
    resident_peak: bool = False,
    budget: float | str | None = None,
    stop: bool = False,
    stacks: bool = False,
    memory_map: bool = False,
) -> Watch:
    """Watch the memory of a ``with`` block, or of every call of a function it decorates.

    In a notebook the chart and the card stand in the cell's output; elsewhere one line is printed
    at the end.

    Parameters
    ----------
    subject : str, torch.nn.Module or transformers.Trainer, optional
        A label; or a model, of which every forward pass in the block is a span of its own; or a Trainer,
        which from now on watches its own trainings wherever nothing else does.
    optimizer : torch.optim.Optimizer, optional
        One whose states are counted from the start; otherwise an optimizer is found at its first step, or
        among the notebook's variables.
    label : str, optional
        What to call it; shown as plain text.
    interval : float, optional
        Seconds between samples, from 0.01 to 3600.
    devices : sequence of str, optional
        Only these, such as ``["cuda:0"]``; all by default.
    chart : bool, optional
        Whether to show a chart.
    panel : bool, optional
        Whether JupyterLab's memory panel may open by itself.
    quiet : bool, optional
        Show nothing; the session is all you get.
    ledger : bool, optional
        Keep exact peaks. Without, the allocator's peak counters are left alone and peaks are
        lower bounds.
    resident_peak : bool, optional
        Take the exact peak of the resident set, by resetting the kernel's mark of it. This also resets
        what ``resource.getrusage`` calls ``ru_maxrss``.
    budget : float or str, optional
        Warn once, when more than these bytes are allocated on a device; or a size such as "20GiB".
    stop : bool, optional
        End a Trainer's training at the end of the step that crossed the budget.
    stacks : bool, optional
        Record where memory is allocated, and show what was live at the exact peak. It slows the code down.
    memory_map : bool, optional
        Show how memory lies in what the allocator has reserved, while the code runs and at the end.

    Returns
    -------
    Watch
        Entering it returns the `Session`.

    Raises
    ------
    OptionError
        If a value is not one of those allowed; on entering, if a device is not there.

    Examples
    --------
    >>> with hfmem_widget.watch("load", quiet=True) as session:
    ...     model = load()
    >>> session.peak("cuda:0/allocated")
    1342177280.0
    """
    name, follow = _understood(subject, label)
    options = WatchOptions(
        label=label or name,
        interval=interval,
        devices=tuple(devices),
        chart=chart,
        panel=panel,
        quiet=quiet,
        ledger=ledger,
        resident_peak=resident_peak,
        budget=parse_bytes(budget) if isinstance(budget, str) else budget,
        stop=stop,
        stacks=stacks,
        memory_map=memory_map,
    )
    return Watch(
        options,
        monitor=shared_monitor(),
        screen=Screen(running_shell()),
        follow=follow,
        subjects=(subject, optimizer),
    )


def read_once(label: str = "now") -> Session:
    """Read everything once, now, and return it as a session that has ended; nothing is shown."""
    monitor = shared_monitor()
    with interrupts_deferred():
        session = monitor.begin(WatchOptions(label=label))
        harmless(follow_optimizers)
        try:
            # A cell's edges count all tensors there are, whenever they were counted last.
            monitor.close_span(session, monitor.open_span(session, "cell", label).id)
        finally:
            monitor.end(session)
    return session


def _understood(subject: object, label: str) -> tuple[str, Follow | None]:
    """Return what to call a subject, and what follows it; a Trainer is given its callback here."""
    if isinstance(subject, str):
        return subject, None
    name = plain(type(subject).__name__)
    if hasattr(subject, "add_callback") and hasattr(subject, "callback_handler"):
        _give_callback(subject, label)
        return name, None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(subject, torch.nn.Module):
        from hfmem_widget.training import Forwards

        return name, lambda monitor, session: Forwards(monitor, session, subject)
    message = f"watch() takes a label, a torch module or a Trainer, not {name}"
    raise OptionError(message)


def _give_callback(trainer: Any, label: str) -> None:
    from hfmem_widget.trainer import MemoryCallback

    if not any(isinstance(one, MemoryCallback) for one in trainer.callback_handler.callbacks):
        trainer.add_callback(MemoryCallback(label=label))

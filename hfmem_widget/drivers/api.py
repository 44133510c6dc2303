"""``hfmem_widget.watch``: of a block, a function, a model, a Trainer.

The module is not called ``watch`` because the function is, and a package cannot hold both names.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hfmem_widget.drivers.watch import Follow, Watch, unwatched
from hfmem_widget.errors import OptionError
from hfmem_widget.guard import entry, interrupts_deferred
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchOptions, budget_in_bytes, device_keys
from hfmem_widget.session import Session
from hfmem_widget.text import plain
from hfmem_widget.view.front_end import running_shell
from hfmem_widget.view.screen import Screen

if TYPE_CHECKING:
    import torch
    from transformers import Trainer


@entry(otherwise=lambda *_args, **_options: Unwatched(), lets=OptionError)
def watch(
    subject: str | torch.nn.Module | Trainer = "",
    optimizer: torch.optim.Optimizer | None = None,
    *,
    label: str = "",
    interval: float = 0.1,
    devices: str | Sequence[str] | None = None,
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

    Coroutine functions and generators may be decorated, too, and are watched until they have ended. In a
    notebook the chart and the card stand in the cell's output; elsewhere one line is printed at the end.

    Parameters
    ----------
    subject : str, torch.nn.Module or transformers.Trainer, optional
        A label; or a model, of which every forward pass in the block is a span of its own; or a Trainer,
        which from now on watches its own trainings in this very way, wherever nothing else does. Neither is
        kept alive.
    optimizer : torch.optim.Optimizer, optional
        One whose states are counted from the start; otherwise an optimizer is found at its first step, or
        among the notebook's variables.
    label : str, optional
        What to call it; shown as plain text.
    interval : float, optional
        Seconds between samples, from 0.01 to 3600.
    devices : str or sequence of str, optional
        Only these, such as "cuda:0", "cuda:0,cpu" or ``["cuda:0", "cpu"]``; all by default.
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
        Warn once, when more than this is allocated on a device: a size such as "20GiB", or a number, which
        is bytes.
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
        If a value is not one of those allowed, or a label is given twice; on entering, and with a Trainer
        at once, if a device is not there, though one may be called so.

    Examples
    --------
    >>> with hfmem_widget.watch("load", quiet=True) as session:
    ...     model = load()
    >>> session.peak("cuda:0/allocated")
    1342177280.0
    """
    name, follow, is_trainer = _understood(subject, label)
    options = WatchOptions(
        label=label or name,
        interval=interval,
        devices=device_keys(devices),
        chart=chart,
        panel=panel,
        quiet=quiet,
        ledger=ledger,
        resident_peak=resident_peak,
        budget=budget_in_bytes(budget),
        stop=stop,
        stacks=stacks,
        memory_map=memory_map,
    )
    if is_trainer:
        _give_callback(subject, options, label)
    return Watch(
        options,
        monitor=shared_monitor(),
        screen=Screen(running_shell()),
        follow=follow,
        subjects=(subject, optimizer),
    )


class Unwatched(Watch):
    """What stands in for a watch that a fault of ours has kept from being made."""

    def __init__(self) -> None:
        self._session = None

    def start(self) -> Session:
        """Return a session that has ended."""
        return unwatched("")

    def stop(self, _error: BaseException | None = None) -> None:
        """There is nothing to end."""

    def _another(self) -> Unwatched:
        return self


def _understood(subject: Any, label: str) -> tuple[str, Follow | None, bool]:
    """Return what to call a subject, what follows it where that is no callback, and if it is a Trainer."""
    if isinstance(subject, str):
        if subject and label:
            message = (
                f"the label is given twice, as {plain(subject)!r} and as label={plain(label)!r}"
            )
            raise OptionError(message)
        return subject, None, False
    name = plain(type(subject).__name__)
    torch = sys.modules.get("torch")
    # Before anything is asked of it: a module may have a `__getattr__` that raises what it likes.
    if torch is not None and isinstance(subject, torch.nn.Module):
        from hfmem_widget.drivers.training import forwards_of

        return name, forwards_of(subject), False
    if hasattr(subject, "add_callback") and hasattr(subject, "callback_handler"):
        return name, None, True
    message = f"watch() takes a label, a torch module or a Trainer, not {name}"
    raise OptionError(message)


def _give_callback(trainer: Any, options: WatchOptions, label: str) -> None:
    """Have a Trainer's own trainings watched as the options say, under the label that was given, if any."""
    from hfmem_widget.drivers.trainer import MemoryCallback, callback_of

    if options.devices:
        # Nobody enters this watch, so nobody would be told of a device that is not there.
        monitor = shared_monitor()
        with interrupts_deferred():
            monitor.end(monitor.begin(options))
    own = callback_of(trainer)
    if own is None:
        trainer.add_callback(MemoryCallback(options=replace(options, label=label)))
    else:
        own.options = replace(options, label=label or own.options.label)

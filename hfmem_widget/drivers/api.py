"""``hfmem_widget.watch``: of a block, a function, a model, a Trainer.

It is not in a module ``watch``: a package cannot have a function and a submodule of one name.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from hfmem_widget.drivers.watch import Follow, Watch, unwatched
from hfmem_widget.errors import OptionError
from hfmem_widget.guard import entry, interrupts_deferred
from hfmem_widget.monitor.shared import shared_monitor
from hfmem_widget.options import WatchKeywords, WatchOptions, lists_options
from hfmem_widget.session import Session
from hfmem_widget.text import plain
from hfmem_widget.view.screen import screen_here

if TYPE_CHECKING:
    import torch
    from transformers import Trainer


@lists_options
@entry(otherwise=lambda *_args, **_options: Unwatched(), lets=OptionError)
def watch(
    subject: str | torch.nn.Module | Trainer = "",
    optimizer: torch.optim.Optimizer | None = None,
    **options: Unpack[WatchKeywords],
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
    **options
        The options of a watch.

    Returns
    -------
    Watch
        Entering it returns the `Session`.

    Raises
    ------
    OptionError
        If there is no such option, a value is not allowed, or a label is given twice; on entering,
        and with a Trainer at once, if a device is not there, though one may be called so.

    Examples
    --------
    >>> with hfmem_widget.watch("load", quiet=True) as session:
    ...     model = load()
    >>> session.peak("cuda:0/allocated")
    1.25 GiB (1,342,177,280 bytes)
    """
    label = options.get("label", "")
    name, follow, is_trainer = _understood(subject, label)
    watch_options = WatchOptions().changed({**options, "label": label or name}, "watch()")
    if is_trainer:
        _give_callback(subject, watch_options, label)
    return Watch(
        watch_options,
        monitor=shared_monitor(),
        screen=screen_here(),
        follow=follow,
        subjects=(subject, optimizer),
    )


class Unwatched(Watch):
    """Stands in for a watch that could not be created because of a fault of this package."""

    def __init__(self) -> None:
        self._session = None

    def start(self) -> Session:
        """Return a session that has ended."""
        return unwatched("")

    def stop(self, _error: BaseException | None = None) -> None:
        """Do nothing: nothing was begun."""

    def __exit__(self, *_: object) -> None:
        pass

    def _another(self) -> Unwatched:
        return self


def _understood(subject: Any, label: str) -> tuple[str, Follow | None, bool]:
    """Return the label of a subject, what follows it besides callbacks, and whether it is a Trainer."""
    if isinstance(subject, str):
        if subject and label:
            labels = f"as {plain(subject)!r} and as label={plain(label)!r}"
            message = f"the label is given twice, {labels}"
            raise OptionError(message)
        return subject, None, False
    name = plain(type(subject).__name__)
    torch = sys.modules.get("torch")
    # Checked before any attribute is read: a module may have a `__getattr__` that raises anything.
    if torch is not None and isinstance(subject, torch.nn.Module):
        from hfmem_widget.drivers.training.forwards import Forwards

        # A weak reference to the module itself: one to a parameter would keep `Module.to` from swapping it.
        return name, partial(Forwards, weakref.ref(subject)), False
    if hasattr(subject, "add_callback") and hasattr(subject, "callback_handler"):
        return name, None, True
    hint = "; as a decorator, write @watch()" if callable(subject) else ""
    message = f"watch() takes a label, a torch module or a Trainer, not {name}{hint}"
    raise OptionError(message)


def _give_callback(trainer: Any, options: WatchOptions, label: str) -> None:
    """Watch a Trainer's trainings with the given options, and under the label, if there is one."""
    from hfmem_widget.drivers.trainer import MemoryCallback, callback_of

    if options.devices:
        # This watch is never entered, which is where an unknown device raises an error.
        monitor = shared_monitor()
        with interrupts_deferred():
            monitor.end(monitor.begin(options))
    callback = callback_of(trainer)
    if callback is None:
        trainer.add_callback(MemoryCallback(options=replace(options, label=label)))
    else:
        callback.options = replace(options, label=label or callback.options.label)

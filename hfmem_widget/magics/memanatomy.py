"""``%memanatomy``: what the memory is for, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.analysis.history import HOW_TO_WATCH
from hfmem_widget.magics.report import ReportMagics
from hfmem_widget.magics.usage import usage_errors
from hfmem_widget.text import plain

if TYPE_CHECKING:
    from hfmem_widget.features.fit.prediction import Prediction
    from hfmem_widget.session import Anatomy, Session

NOW, PEAK = "now", "peak"


@magics_class
class MemanatomyMagics(ReportMagics):
    """Shows what the memory of the newest watched cell is for."""

    name = "memanatomy"
    words = (NOW, PEAK)

    @magic_arguments("memanatomy")
    @argument(
        "moment",
        nargs="?",
        metavar="now|peak|N",
        help="'now' takes a reading, 'peak' is the highest point of the watch, and a number is the peak of "
        "that step. Default: the end of the watch beside its peak.",
    )
    @argument(
        "-d",
        "--device",
        default="",
        help="Which device, such as cuda:0. Default: the one with the most memory allocated.",
    )
    @argument("-a", "--all", action="store_true", help="Show every device that was used.")
    @argument(
        "-p",
        "--predicted",
        action="store_true",
        help="Beside the peak, show what the worst step should need, by a dry run of the model. The model "
        "and its optimizer must still exist; neither is modified.",
    )
    @line_magic("memanatomy")  # type: ignore[arg-type]  # it is typed for a callable of Never
    def memanatomy(self, line: str) -> None:
        """Show what the memory is for: weights, gradients, optimizer states, activations, cache.

        ::

            %%memwatch
            trainer.train()

            %memanatomy

        shows two bars and a table, now and at the peak: each part in bytes and as a share of the device,
        and unknown memory as a part of its own. The sums are below.

        It shows the newest watched cell, running or finished: ``%memanatomy peak`` only its peak,
        ``%memanatomy 12`` the peak of step 12. ``%memanatomy now`` takes a reading, and needs no watched
        cell. In code, use ``session.anatomy()``.
        """
        arguments = self.parse(line)
        if arguments is None:
            return
        if arguments.all and arguments.device:
            message = "use --all or --device, not both"
            raise UsageError(message)
        moments = [_moment(arguments.moment)] if arguments.moment else [NOW, PEAK]
        if arguments.predicted and NOW in moments:
            moments = [PEAK]
        session = self._history.latest
        if session is None and PEAK in moments and len(moments) > 1:
            moments = [NOW]
        if moments == [NOW] and not (session is not None and session.running):
            session = _read_now()
        if session is None:
            raise UsageError(HOW_TO_WATCH)
        self._show(
            session,
            moments,
            arguments.device,
            every=arguments.all,
            predicted=arguments.predicted,
        )

    def _show(
        self,
        session: Session,
        moments: Sequence[str | int],
        device: str,
        *,
        every: bool,
        predicted: bool,
    ) -> None:
        from hfmem_widget.analysis.facts import active_devices
        from hfmem_widget.view.anatomy import anatomy_bundle, contents_text
        from hfmem_widget.view.screen import Screen

        devices = [one.key for one in active_devices(session)] if every else [device]
        with usage_errors():
            told = [session.anatomy(at, one) for one in devices for at in moments]
            forecasts = _predictions(session, told) if predicted else {}
        if moments == [NOW]:
            told = [replace(one, moment=NOW) for one in told]
        about = [contents_text(session.contents)]
        about += [one.per_parameter for one in forecasts.values()][:1]
        bundle = anatomy_bundle(
            told,
            {key: one.parts for key, one in forecasts.items()},
            title=session.label,
            contents=" \u00b7 ".join(filter(None, about)),
        )
        Screen(self._shell).show(bundle)


def _predictions(session: Session, told: Sequence[Anatomy]) -> dict[str, Prediction]:
    from hfmem_widget.features.fit.prediction import prediction

    keys = dict.fromkeys(one.device.key for one in told)
    return {key: prediction(session, key) for key in keys}


def _read_now() -> Session:
    """Return a reading of this moment, for which nothing need have been watched."""
    from hfmem_widget.monitor.shared import read_once

    return read_once()


def _moment(word: str) -> str | int:
    if word in {NOW, PEAK}:
        return word
    if word.isdecimal():
        return int(word)
    message = f"%memanatomy takes 'now', 'peak' or a step number, not {plain(word)!r}"
    raise UsageError(message)

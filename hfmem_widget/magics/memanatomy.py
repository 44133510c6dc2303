"""``%memanatomy``: what the memory is for, part by part."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from IPython.core.error import UsageError
from IPython.core.magic_arguments import argument

from hfmem_widget.analysis.history import HISTORY, HOW_TO_WATCH
from hfmem_widget.magics.report import ReportMagics, report
from hfmem_widget.text import plain

NOW, PEAK = "now", "peak"


class MemanatomyMagics(ReportMagics):
    """Shows what the memory of the newest watched cell is for."""

    name = "memanatomy"
    words = (NOW, PEAK)

    @report
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
    def memanatomy(self, arguments: Namespace) -> None:
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
        if arguments.all and arguments.device:
            raise UsageError("use --all or --device, not both")
        moments = [_moment(arguments.moment)] if arguments.moment else [NOW, PEAK]
        if arguments.predicted and NOW in moments:
            moments = [PEAK]
        session = HISTORY.latest
        if session is None and PEAK in moments and len(moments) > 1:
            moments = [NOW]
        if moments == [NOW] and not (session is not None and session.running):
            from hfmem_widget.monitor.shared import read_once

            session = read_once()
        if session is None:
            raise UsageError(HOW_TO_WATCH)
        from hfmem_widget.analysis.facts import active_devices
        from hfmem_widget.view.anatomy import anatomy_bundle, contents_text

        devices = [arguments.device]
        if arguments.all:
            devices = [device.key for device in active_devices(session)]
        anatomies = [session.anatomy(at, device) for device in devices for at in moments]
        if moments == [NOW]:
            anatomies = [replace(anatomy, moment=NOW) for anatomy in anatomies]
        forecasts = {}
        if arguments.predicted:
            from hfmem_widget.features.fit.prediction import prediction

            keys = dict.fromkeys(anatomy.device.key for anatomy in anatomies)
            forecasts = {key: prediction(session, key) for key in keys}
        per_parameter = next((each.per_parameter for each in forecasts.values()), "")
        bundle = anatomy_bundle(
            anatomies,
            {key: forecast.parts for key, forecast in forecasts.items()},
            title=session.label,
            contents=" \u00b7 ".join(
                filter(None, [contents_text(session.contents), per_parameter])
            ),
        )
        self.show(bundle)


def _moment(word: str) -> str | int:
    if word in {NOW, PEAK}:
        return word
    if word.isdecimal():
        return int(word)
    raise UsageError(f"%memanatomy takes 'now', 'peak' or a step number, not {plain(word)!r}")

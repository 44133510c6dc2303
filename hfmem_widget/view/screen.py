"""Where a watch shows itself: the outputs of the cell that is running."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

from hfmem_widget.view.clearing import is_caught, on_clearing, request_of
from hfmem_widget.view.front_end import replaces_outputs

Bundle = Mapping[str, Any]

MARK = "hfmem-widget"
"""The metadata of an output that is to be replaced: its display id, which a page that is reloaded forgets,
and what stands there if nothing replaces it. JupyterLab's panel reads both (`panel/outputs.ts`)."""

STAND_INS = str.maketrans(
    {
        "·": "|",
        "→": "->",
        "\N{MINUS SIGN}": "-",
        "±": "+-",
        "≥": ">=",
        "≤": "<=",
        "\N{MULTIPLICATION SIGN}": "x",
        "µ": "u",
        "…": "...",
        "\N{EN DASH}": "-",
    }
)
"""For a terminal, a pipe or a file that is not UTF-8."""


class Screen:
    """The outputs of an IPython shell, addressed by display ids.

    Parameters
    ----------
    shell : InteractiveShell or None
        Without one, plain text is printed.
    """

    def __init__(self, shell: Any = None) -> None:
        self._shell = shell
        self._cleared = False
        self._stop_listening: Callable[[], None] | None = None

    @property
    def live(self) -> bool:
        """True where an output can be shown now and replaced later: a kernel's, not captured ones."""
        return (
            self._is_kernels
            and os.environ.get("HFMEM_WIDGET", "") not in {"static", "off"}
            and not is_caught(request_of(self._shell.display_pub))
            and replaces_outputs(self._request, os.environ)
        )

    @property
    def _request(self) -> Mapping[str, Any]:
        """The message that asked for what runs; empty where there is none."""
        get_parent = getattr(self._shell, "get_parent", None)
        return (get_parent() if get_parent is not None else None) or {}

    @property
    def _is_kernels(self) -> bool:
        publisher = getattr(self._shell, "display_pub", None)
        return getattr(publisher, "pub_socket", None) is not None

    @property
    def cleared(self) -> bool:
        """True once the user's code has cleared the outputs."""
        return self._cleared

    def show(self, bundle: Bundle, *, display_id: str = "", lost: Bundle | None = None) -> str:
        """Show a bundle of MIME types as a new output, and return its display id.

        Parameters
        ----------
        lost : mapping, optional
            Of an output that is to be replaced: what stands there where nothing came to replace it.
        """
        display_id = display_id or f"hfmem-{secrets.token_hex(8)}"
        self._publish(bundle, display_id, update=False, lost=lost)
        return display_id

    def replace(self, display_id: str, bundle: Bundle, *, lost: Bundle | None = None) -> None:
        """Show a bundle in the place of an earlier one; as a new output if the user cleared that."""
        self._publish(bundle, display_id, update=not self._cleared, lost=lost)

    def watch_clearing(self) -> None:
        """Notice from now on if the user's code clears the outputs."""
        publisher: Any = getattr(self._shell, "display_pub", None)
        if self._stop_listening is not None or not hasattr(publisher, "clear_output"):
            return
        request = request_of(publisher)

        def notice() -> None:
            # What a callback clears is its own request's, and what a widget catches is the widget's.
            if request_of(publisher) == request and not is_caught(request):
                self._cleared = True

        self._stop_listening = on_clearing(publisher, notice)

    def close(self) -> None:
        """Stop noticing."""
        stop, self._stop_listening = self._stop_listening, None
        if stop is not None:
            stop()

    def _publish(
        self, bundle: Bundle, display_id: str, *, update: bool, lost: Bundle | None
    ) -> None:
        data = dict(bundle)
        if not self._is_kernels and "text/plain" in data:
            data["text/plain"] = printable(
                data["text/plain"], getattr(sys.stdout, "encoding", None)
            )
        if self._shell is None:
            print(data.get("text/plain", ""))  # noqa: T201  (the output of a script is its terminal)
            return
        mark = {} if lost is None else {MARK: {"display_id": display_id, "lost": dict(lost)}}
        self._shell.display_pub.publish(
            data=data, metadata=mark, transient={"display_id": display_id}, update=update
        )


def printable(text: str, encoding: str | None) -> str:
    """Return a text as far as an encoding has letters for it; unchanged where it has all."""
    encoding = encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.translate(STAND_INS).encode(encoding, errors="replace").decode(encoding)
    return text

"""What is shown where there is no notebook."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hfmem_widget.view.screen import Screen

LINE = 'memwatch "läuft" · heap 95.2 → 95.3 MiB (±0) · peak ≥ 96 MiB · 6 µs …'


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", LINE),
        ("ascii", 'memwatch "l?uft" | heap 95.2 -> 95.3 MiB (+-0) | peak >= 96 MiB | 6 us ...'),
        ("cp1252", 'memwatch "läuft" | heap 95.2 -> 95.3 MiB (+-0) | peak >= 96 MiB | 6 us ...'),
    ],
)
def test_a_line_is_printed_in_the_letters_that_there_are(
    monkeypatch: pytest.MonkeyPatch, encoding: str, shown: str
) -> None:
    """Symbols that an encoding has not have stand-ins of more than one letter, other text a question mark."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    Screen().show({"text/plain": LINE})
    sys.stdout.flush()

    assert written.getvalue().decode(encoding) == f"{shown}\n"


@pytest.mark.parametrize(("is_kernel", "shown"), [(True, "a → b"), (False, "a -> b")])
def test_a_shell_in_a_terminal_is_given_what_its_terminal_can_print(
    monkeypatch: pytest.MonkeyPatch, is_kernel: bool, shown: str
) -> None:
    """A kernel sends its outputs to a page, whatever its own terminal can print."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    published: list[dict[str, Any]] = []
    publisher = SimpleNamespace(
        pub_socket=object() if is_kernel else None,
        publish=lambda **message: published.append(message["data"]),
    )
    Screen(SimpleNamespace(display_pub=publisher)).show({"text/plain": "a → b"})

    assert published == [{"text/plain": shown}]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("%memholders lists what holds it.", "hfmem_widget.holders() lists what holds it."),
        ("run %memholders --free errors first", "run hfmem_widget.free('errors') first"),
        ("%memholders --free garbage --trim", "hfmem_widget.free('garbage', trim=True)"),
        ("<code>%memfit</code> lists", "<code>hfmem_widget.fit(session)</code> lists"),
        ("%memanatomy --layout", "hfmem_widget.memory_map()"),
        ("100 %memory", "100 %memory"),
    ],
)
def test_where_there_are_no_magics_calls_are_advised(
    capsys: pytest.CaptureFixture[str], said: str, shown: str
) -> None:
    """A script, a notebook that has not loaded the extension: what is advised can be done there."""
    published: list[dict[str, Any]] = []
    publisher = SimpleNamespace(publish=lambda **message: published.append(message["data"]))
    Screen().show({"text/plain": said})
    Screen(SimpleNamespace(display_pub=publisher)).show({"text/html": said})
    registry = SimpleNamespace(registry={"MemwatchMagics": object()})
    Screen(SimpleNamespace(display_pub=publisher, magics_manager=registry)).show(
        {"text/html": said}
    )

    assert capsys.readouterr().out == f"{shown}\n"
    assert published == [{"text/html": shown}, {"text/html": said}]

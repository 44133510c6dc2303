"""What a watched cell lends to its children, and takes back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from hfmem_widget.options import WatchOptions
from hfmem_widget.ranks.environment import (
    CLAIMED,
    OPTIONS,
    PATH,
    RUN,
    SITE,
    Lent,
    handed_on,
    lends,
)
from hfmem_widget.ranks.process_group import leave_groups

DIRECTORY = Path("/shared/run1")


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    leave_groups()
    assert not lends()


@pytest.mark.parametrize("before", [{}, {PATH: ""}, {PATH: "/a:/b"}, {PATH: "/a", "OTHER": "x"}])
def test_what_was_there_is_put_back(before: dict[str, str]) -> None:
    """Exactly: what was not set is not set, and what was empty is empty."""
    environ = dict(before)
    lent = Lent(DIRECTORY, environ=environ)

    assert lent.begin()
    assert environ[RUN] == str(DIRECTORY)
    assert environ[PATH].split(os.pathsep)[0] == SITE
    assert environ[PATH].split(os.pathsep)[1:] == [
        one for one in before.get(PATH, "").split(":") if one
    ]
    lent.end()
    lent.end()

    assert environ == before


def test_what_the_user_has_changed_meanwhile_stays() -> None:
    """Without our part, and another run's directory is theirs."""
    environ = {PATH: "/a"}
    lent = Lent(DIRECTORY, environ=environ)
    lent.begin()
    environ[PATH] = f"/new{os.pathsep}{environ[PATH]}{os.pathsep}/more"
    environ[RUN] = "/theirs"
    lent.end()

    assert environ == {PATH: f"/new{os.pathsep}/a{os.pathsep}/more", RUN: "/theirs"}


@pytest.mark.parametrize("now", [None, "/only"])
def test_what_the_user_has_put_in_its_place_stays(now: str | None) -> None:
    """A path without our part is left as it is, and one that was taken away is not brought back."""
    environ = {PATH: "/a"}
    lent = Lent(DIRECTORY, environ=environ)
    lent.begin()
    if now is None:
        environ.clear()
    else:
        environ[PATH] = now
    lent.end()

    assert environ == ({} if now is None else {PATH: now})


def test_a_user_who_adds_to_what_was_not_set_keeps_that() -> None:
    """Our part goes, and with nothing else left so does the variable."""
    environ: dict[str, str] = {}
    lent = Lent(DIRECTORY, environ=environ)
    lent.begin()
    environ[PATH] += f"{os.pathsep}{SITE}"
    lent.end()

    assert environ == {}


@pytest.mark.parametrize("known", [{RUN: "/outer"}, {CLAIMED: "4711"}])
def test_within_a_run_nothing_is_lent(known: dict[str, str]) -> None:
    """A watch in a rank, or within a watch that lends already, leaves the environment alone."""
    environ = dict(known)
    lent = Lent(DIRECTORY, environ=environ)

    assert not lent.begin()
    assert environ == known
    lent.end()
    assert environ == known


def test_who_lends_is_no_rank() -> None:
    """Only what it starts is: a forked child has another number."""
    lent = Lent(DIRECTORY, environ={})
    lent.begin()
    assert lends()
    with mock.patch("os.getpid", return_value=1):
        assert not lends()
    lent.end()

    assert not lends()


def test_a_forked_child_takes_nothing_back() -> None:
    """Its environment is its own, and what it starts is followed still."""
    environ: dict[str, str] = {}
    lent = Lent(DIRECTORY, environ=environ)
    lent.begin()
    with mock.patch("os.getpid", return_value=1):
        lent.end()
    assert environ[RUN] == str(DIRECTORY)
    lent.end()


def test_some_options_are_the_ranks_too() -> None:
    """Who asked that the peak counters be left alone asked it for the ranks as well."""
    environ: dict[str, str] = {}
    lent = Lent(DIRECTORY, WatchOptions(interval=0.5, ledger=False, label="cell"), environ)
    lent.begin()

    assert handed_on(environ) == {
        "interval": 0.5,
        "ledger": False,
        "phases": "auto",
        "resident_peak": False,
    }
    lent.end()
    assert handed_on(environ) == {}


@pytest.mark.parametrize(
    "said", ["", "{", "[]", "5", '{"interval":-1}', '{"ledger":"x"}', "[" * 9999]
)
def test_options_that_cannot_be_read_are_none(said: str) -> None:
    """The rank is watched in the usual way."""
    assert handed_on({OPTIONS: said}) == {}


def test_options_that_are_not_handed_on_are_passed_over() -> None:
    """A rank records where its run is, whatever the variable says."""
    assert handed_on({OPTIONS: '{"record":"/etc/x","interval":2}'}) == {"interval": 2}

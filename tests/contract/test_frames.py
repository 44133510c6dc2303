"""What Python sends is what the page is tested against (`js/tests/contract.test.ts`)."""

from itertools import zip_longest

import pytest

from tests.contract.runs import RUNS
from tests.contract.write_frames import FRAMES, render

IF_IT_SHOULD = """\
If the wire should change: say so in docs/wire.md, raise PROTOCOL on both sides if an open page could not
read it, write the frames anew with `python -m tests.contract.write_frames`, look at `git diff`, and run
the front end's tests."""


@pytest.mark.parametrize("name", RUNS)
def test_python_sends_what_is_in_git(name: str) -> None:
    """The frames are equal to the byte, so that no change of the wire goes unseen."""
    kept = (FRAMES / f"{name}.json").read_text(encoding="utf-8").splitlines()
    sent = render(RUNS[name]()).splitlines()
    for number, (old, new) in enumerate(zip_longest(kept, sent, fillvalue="(nothing)"), start=1):
        if old != new:
            differs = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), 0)
            start = max(0, differs - 60)
            pytest.fail(
                f"line {number} of frames/{name}.json is not what is sent any more.\n"
                f"in git: … {old[start:]:.160}\n  sent: … {new[start:]:.160}\n{IF_IT_SHOULD}",
                pytrace=False,
            )


def test_every_file_of_frames_is_a_run_of_today() -> None:
    """A run that was taken away leaves nothing behind, and those in git stay below 115 kB together."""
    assert {path.stem for path in FRAMES.iterdir()} == set(RUNS)
    assert sum(path.stat().st_size for path in FRAMES.iterdir()) < 115_000

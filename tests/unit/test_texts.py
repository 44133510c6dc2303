"""What the product says and draws, whole, of scripted runs, errors, maps and faults: `tests/data/texts`."""

import sys
from collections.abc import Callable, Iterator

import pytest

from hfmem_widget.features.holders.html import holders_bundle
from hfmem_widget.features.memory_map.html import sentences
from hfmem_widget.features.oom.advice import advise
from hfmem_widget.features.oom.diagnosis import diagnose
from hfmem_widget.features.oom.html import out_of_memory_bundle
from hfmem_widget.sources.heap.model import Holder, Holders, Remainder
from hfmem_widget.sources.heap.roots import remedy
from hfmem_widget.sources.nvml_gpu import Fault, why_closed, why_unread
from hfmem_widget.text import GIB, MIB
from hfmem_widget.view.anatomy import anatomy_bundle
from hfmem_widget.view.card import card_bundle
from tests.data.drawn import every, kept, summary
from tests.data.oom_cases import CASES
from tests.data.recorded import NAMES, recorded_map
from tests.data.texts import assert_reads
from tests.scenes import SCRIPTED_RUNS, shared_run

Texts = Iterator[tuple[str, str]]
HOLDERS = (
    Holder("losses[0..99]", "tensors", "cuda:0", int(40 * MIB), 200, (512, 512), "float32",
           int(39 * MIB), 100, ("_",)),
    Holder("model", "weights", "cuda:0", int(20 * MIB), 9, (64,), "bfloat16"),
    Holder("the error of cell [7] \u2192 x", "tensors", "cuda:0", int(8 * MIB), 1, (64,), "float32"),
    Holder("Out[3]", "tensors", "cuda:0", int(4 * MIB), 1, (64,), "float32"),
    Holder("small", "gradients", "cuda:0", 1, 1, (1,), "float32"),
)  # fmt: skip
REMAINDERS = (Remainder("cuda:0", 3 * MIB, is_host=False), Remainder("cpu", GIB, is_host=True))


def cards() -> Texts:
    for name in SCRIPTED_RUNS:
        session = shared_run(name)
        yield name, card_bundle(session, session.spans[0], with_chart=False)["text/plain"]


def anatomies() -> Texts:
    for name in ("training", "cpu"):
        session = shared_run(name)
        moments = [session.anatomy("now"), session.anatomy("peak")]
        yield name, anatomy_bundle(moments, title=session.label)["text/plain"]


def ooms() -> Texts:
    """Yield the card of one scripted out-of-memory error of each cause."""
    for case in {case.cause: case for case in reversed(CASES)}.values():
        diagnosis = diagnose(case.incident)
        advice = advise(case.incident, diagnosis)
        bundle = out_of_memory_bundle(case.incident, diagnosis, advice, earlier=1)
        yield case.name, bundle["text/plain"]


def holders() -> Texts:
    """Yield the table of what holds memory, and what to do about each row."""
    yield "table", holders_bundle(Holders(HOLDERS, REMAINDERS, 0.25, 1234))["text/plain"]
    for row in HOLDERS:
        yield row.path, remedy(row)


def maps() -> Texts:
    for name in NAMES:
        yield name, "\n".join(sentences(recorded_map(name).fragmentation("cuda:0")))


class NvmlError(Exception):
    """An error of the driver's library, with its code."""

    def __init__(self, value: Fault) -> None:
        super().__init__("Oh")
        self.value = value


def faults() -> Texts:
    """Yield why the driver, or one GPU, cannot be read."""
    for fault in Fault:
        yield f"driver, {fault.name}", why_closed(NvmlError(fault))
        yield f"cuda:0, {fault.name}", why_unread("cuda:0", NvmlError(fault))


@pytest.mark.parametrize("texts", [cards, anatomies, ooms, holders, maps, faults])
def test_what_is_said_reads_so(texts: Callable[[], Texts], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is that of its file, word by word; its facts are asserted by the tests of its feature."""
    # What an argument of a Trainer is called depends on the transformers that is loaded, if any.
    monkeypatch.delitem(sys.modules, "transformers.training_args", raising=False)
    assert_reads(texts.__name__, "\n\n".join(f"# {name}\n{text}" for name, text in texts()))


KEPT = kept()


@pytest.mark.parametrize(("name", "make"), [pytest.param(*one, id=one[0]) for one in every()])
def test_a_picture_has_the_pieces_that_are_kept(name: str, make: Callable[[], list[str]]) -> None:
    """Where a change is meant, ``python -m tests.data.drawn`` keeps what is drawn now."""
    assert summary(make()) == KEPT[name], f"python -m tests.data.drawn {name} shows its pieces"


def test_every_picture_that_is_kept_is_drawn() -> None:
    """No picture of a removed view is kept."""
    assert [name for name, _ in every()] == list(KEPT)

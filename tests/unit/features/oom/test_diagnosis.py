"""The cause of an out-of-memory error and the advice, for scripted errors with known causes."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import make_dataclass, replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.features.oom.advice import MOST, advise
from hfmem_widget.features.oom.diagnosis import diagnose, huge, in_optimizer, is_logits, training
from hfmem_widget.features.oom.errors import Origin
from hfmem_widget.features.oom.html import WHO
from hfmem_widget.features.oom.incident import finding_of, headline
from hfmem_widget.features.oom.model import NAMES, Incident, ModelFacts
from hfmem_widget.features.oom.observer import BACKWARD
from hfmem_widget.text import GIB, format_bytes
from tests.data import DATA, ROOT
from tests.data.oom_cases import CASES
from tests.data.oom_incidents import GPU, HOST, Case, incident, spans
from tests.data.parted import NAN


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_is_found(case: Case) -> None:
    """Each scripted error gets the cause of its script."""
    assert diagnose(case.incident).cause == case.cause


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_has_a_reason_here(case: Case) -> None:
    """The advice that applies is given in order, and no other; never more than five."""
    told = advise(case.incident, diagnose(case.incident))
    assert len(told) <= MOST
    for advice, words in zip(told, case.advice, strict=False):
        assert words in advice.sentence()
    assert len(told) >= len(case.advice)
    everything = " ".join(one.sentence() for one in told)
    for words in case.never:
        assert words not in everything


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sentences_are_whole(case: Case) -> None:
    """A sentence begins with a capital, ends with one full stop, and has no unknown figure."""
    diagnosis = diagnose(case.incident)
    advice = advise(case.incident, diagnosis)
    finding = finding_of(case.incident, diagnosis, advice, spans()[0])
    for sentence in (diagnosis.sentence, finding.title, *finding.advice):
        assert re.fullmatch(r"[A-Z].*[^.]\.", sentence, re.DOTALL), sentence
        assert "n/a" not in sentence
        assert "nan" not in sentence
    assert all(one.reason and one.action for one in advice)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        ((), "gradient_checkpointing"),
        (("gradient_checkpointing",), "gradient_checkpointing"),
        (("activation_checkpointing", "gradient_checkpointing"), "activation_checkpointing"),
    ],
)
def test_checkpointing_has_its_name_in_the_installed_transformers(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], option: str
) -> None:
    """The old name is deprecated in newer versions, and is used if the version is unknown."""
    module = ModuleType("transformers.training_args")
    if arguments:
        module.__dict__["TrainingArguments"] = make_dataclass("TrainingArguments", arguments)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    told = advise(CASES[0].incident, diagnose(CASES[0].incident))

    assert f"({option}=True)" in told[0].action


FIGURES: dict[str, Any] = json.loads((DATA / "oom_figures.json").read_text(encoding="utf-8"))
FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?(?: (?:[KMGTP]iB|%))?")


def figures_in(incident: Incident) -> dict[str, Any]:
    """Return the figures of the diagnosis and of each advice: of its sentence, and of its saving."""
    diagnosis = diagnose(incident)
    return {
        "diagnosis": FIGURE.findall(diagnosis.sentence),
        "advice": [
            {
                "says": FIGURE.findall(one.sentence()),
                "GiB": round(one.bytes / GIB, 2),
            }
            for one in advise(incident, diagnosis)
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_figure_is_the_incidents(case: Case) -> None:
    """For each scripted error: used memory, free memory, and the saving of each change, in this order."""
    assert figures_in(case.incident) == FIGURES[case.name]


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (2.0 * GIB, "2.00 GiB"),
        (3 * 1024 * GIB, "3.00 TiB"),
        (2**50, "1.00 PiB"),
        (2**60, "1,024 PiB"),
    ],
)
def test_sizes_beyond_any_machine_have_greater_units(size: float, words: str) -> None:
    """From 1000 GiB on a size is in TiB, from 1000 TiB on in PiB."""
    assert format_bytes(size) == words


SIZES = st.one_of(st.just(float("nan")), st.floats(0, 1e15))


@given(
    origin=st.sampled_from(list(WHO)),
    sizes=st.lists(SIZES, min_size=8, max_size=8),
    case=st.sampled_from(CASES),
)
def test_no_figures_make_it_raise(origin: Origin, sizes: list[float], case: Case) -> None:
    """Whatever is known, there is a diagnosis in a sentence, and advice with reasons."""
    names = ("asked", "total", "free", "allowed", "allocated", "reserved", "others", "grown")
    base = case.incident
    incident = Incident(
        device=GPU,
        origin=origin,
        **dict(zip(names, sizes, strict=True)),  # type: ignore[arg-type]  # every one of these is a float
        blocks=base.blocks,
        anatomy=base.anatomy,
        path=base.path,
        contents=base.contents,
        model=base.model,
        growth=base.growth,
        usual=base.usual,
        seen=base.seen,
    )
    diagnosis = diagnose(incident)
    assert diagnosis.sentence
    assert all(one.reason for one in advise(incident, diagnosis))


def test_the_documented_order_is_the_codes_order() -> None:
    """The page names every cause, in the order in which they are tried."""
    page = (ROOT / "docs" / "out-of-memory.md").read_text(encoding="utf-8")
    places = [page.index(f". **{name}**: ") for name in NAMES.values()]
    assert places == sorted(places)


def test_the_caller_of_a_backward_pass_made_no_request() -> None:
    """An optimizer whose closure calls backward(), such as LBFGS, did not run out of memory itself."""
    calls = (BACKWARD, "torch._tensor.backward", "__main__.closure", "torch.optim.lbfgs.step")
    assert not in_optimizer(incident(asked=1, free=0, calls=calls))
    assert training(incident(asked=1, free=0, calls=calls))


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            {"device": HOST, "origin": "cpu", "total": 64},
            "75 % of this process's private memory (40.0 GiB) is weights",
        ),
        (
            {"origin": "cublas"},
            "take 40.0 GiB of 80.0 GiB, of which 75 % is weights",
        ),
    ],
)
def test_the_share_of_the_largest_part_names_its_whole(more: dict[str, Any], told: str) -> None:
    """The allocated bytes, not the free memory of the machine nor a library's request."""
    parts = {"weights": 30, "activations": 10} | ({} if "device" in more else {"cache": 39})
    full = incident(asked=8, free=1, parts=parts, **more)

    assert told in diagnose(full).sentence


def test_unknown_growth_has_no_figure() -> None:
    """The advice on concatenated predictions is given even if their size is unknown."""
    case = next(one for one in CASES if one.name.startswith("predictions that are put together"))
    for grown in (0.0, float("nan"), -GIB):
        told = advise(replace(case.incident, grown=grown), diagnose(case.incident))
        (one,) = [one for one in told if "eval_accumulation_steps" in one.action]
        assert not re.search(r"\d", one.sentence())


@pytest.mark.parametrize(
    ("tokens", "mib", "are"),
    [(1024, 0.9, False), (1024, 1, True), (1024, 2.9, True), (1024, 4, True), (1024, 4.1, False),
     (0, 1, False), (NAN, 1, False)],
)  # fmt: skip
def test_logits_are_known_by_their_size(tokens: float, mib: float, *, are: bool) -> None:
    """Tokens times vocabulary, of two or four bytes, with the allocator's rounding of 1 or 2 MiB."""
    path, model = spans("train", "step", tokens=tokens), ModelFacts(vocabulary=512)
    one = incident(asked=mib / 1024, free=0.01, path=path, model=model)

    assert is_logits(one) is are


@pytest.mark.parametrize(
    ("asked", "parts", "how"),
    [
        (41.0, {"weights": 40.0}, "more than the 40.0 GiB of cuda:0"),
        (41.0, {"activations": 40.0}, "51 % of cuda:0"),
        (39.0, {"weights": 40.0}, "49 % of cuda:0"),
        (81.0, {"weights": 40.0}, "more than cuda:0 has in total"),
    ],
)
def test_a_huge_request_is_compared_with_what_the_model_leaves(
    asked: float, parts: dict[str, float], how: str
) -> None:
    """Or with all memory, if the model itself holds nothing."""
    found = huge(incident(asked=asked, free=1.0, parts=parts))

    assert found is not None
    assert how in found.sentence


@pytest.mark.parametrize(("asked", "promised"), [(30.0, True), (1 / GIB, True), (0.0, False)])
def test_other_processes_are_no_cause_without_a_request(asked: float, *, promised: bool) -> None:
    """The sentence that it would have fit is only for a known request."""
    sentence = diagnose(incident(asked=asked, free=1.0, others=40.0, allocated=1.0)).sentence

    assert ("would have fit" in sentence) is promised


@pytest.mark.parametrize(
    ("asked", "free", "words"),
    [
        (1.0, 0.5, ": 1.00 GiB requested, 512.0 MiB free"),
        (0.0, 0.5, ": 512.0 MiB free"),
        (NAN, 0.0, ": 0.00 MiB free"),
        (1.0, NAN, ": 1.00 GiB requested"),
        (NAN, NAN, ""),
    ],
)
def test_a_heading_has_the_figures_that_are_known(asked: float, free: float, words: str) -> None:
    """Zero free bytes are a figure, a request of zero bytes is not."""
    assert headline(incident(asked=asked, free=free)) == f"Out of memory on cuda:0{words}"

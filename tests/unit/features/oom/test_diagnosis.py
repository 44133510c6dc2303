"""The cause of an out-of-memory error and the advice, for scripted errors with known causes."""

import json
import re
import sys
from dataclasses import make_dataclass, replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.features.oom.advice import MOST, advise, remedies, savings
from hfmem_widget.features.oom.diagnosis import diagnose, huge, in_optimizer, is_logits, training
from hfmem_widget.features.oom.errors import Origin
from hfmem_widget.features.oom.html import WHO
from hfmem_widget.features.oom.incident import finding_of, headline
from hfmem_widget.features.oom.model import (
    NAMES,
    Advice,
    Cause,
    Incident,
    ModelFacts,
    OomDiagnosis,
    Seen,
)
from hfmem_widget.features.oom.observer import BACKWARD
from hfmem_widget.session import Contents
from hfmem_widget.text import GIB, format_bytes
from tests.data import DATA, ROOT
from tests.data.oom_cases import CASES
from tests.data.oom_incidents import GPU, HOST, Case, blocks, incident, spans
from tests.data.parted import NAN


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_cause_is_found(case: Case) -> None:
    """Each scripted error gets the cause of its script."""
    assert diagnose(case.incident).cause == case.cause


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_has_a_reason_here(case: Case) -> None:
    """The advice that applies is given in order, and no other; never more than five."""
    suggestions = advise(case.incident, diagnose(case.incident))
    assert len(suggestions) <= MOST
    for suggestion, expected in zip(suggestions, case.advice, strict=False):
        assert expected in suggestion.sentence()
    assert len(suggestions) >= len(case.advice)
    everything = " ".join(suggestion.sentence() for suggestion in suggestions)
    for expected in case.never:
        assert expected not in everything


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
    suggestions = advise(CASES[0].incident, diagnose(CASES[0].incident))

    assert f"({option}=True)" in suggestions[0].action


FIGURES: dict[str, Any] = json.loads((DATA / "oom_figures.json").read_text(encoding="utf-8"))
FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?(?: (?:[KMGTP]iB|%))?")


def figures_in(incident: Incident) -> dict[str, Any]:
    """Return the figures of the diagnosis and of each advice: of its sentence, and of its saving."""
    diagnosis = diagnose(incident)
    advice = advise(incident, diagnosis)
    return {
        "diagnosis": FIGURE.findall(diagnosis.sentence),
        "advice": [
            {"says": FIGURE.findall(one.sentence()), "GiB": round(one.bytes / GIB, 2)}
            for one in advice
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_figure_is_the_incidents(case: Case) -> None:
    """The figures are used memory, free memory, and the saving of each change, in this order."""
    assert figures_in(case.incident) == FIGURES[case.name]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2.0 * GIB, "2.00 GiB"),
        (3 * 1024 * GIB, "3.00 TiB"),
        (2**50, "1.00 PiB"),
        (2**60, "1,024 PiB"),
    ],
)
def test_sizes_beyond_any_machine_have_greater_units(size: float, text: str) -> None:
    """From 1000 GiB on a size is in TiB, from 1000 TiB on in PiB."""
    assert format_bytes(size) == text


SIZES = st.one_of(st.just(float("nan")), st.floats(0, 1e15))


@given(
    origin=st.sampled_from(list(WHO)),
    sizes=st.lists(SIZES, min_size=8, max_size=8),
    case=st.sampled_from(CASES),
)
def test_no_figures_make_it_raise(origin: Origin, sizes: list[float], case: Case) -> None:
    """With any figures there is a diagnosis in a sentence, and advice with reasons."""
    names = ("asked", "total", "free", "allowed", "allocated", "reserved", "others", "grown")
    figures: dict[str, Any] = dict(zip(names, sizes, strict=True))
    known = replace(case.incident, device=GPU, origin=origin, **figures)
    diagnosis = diagnose(known)
    assert diagnosis.sentence
    assert all(one.reason for one in advise(known, diagnosis))


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
    ("more", "share"),
    [
        (
            {"device": HOST, "origin": "cpu", "total": 64},
            "75 % of this process's private memory (40.0 GiB)",
        ),
        ({"origin": "cublas"}, "take 40.0 GiB of 80.0 GiB, of which 75 %"),
    ],
)
def test_the_share_of_the_largest_part_names_its_whole(more: dict[str, Any], share: str) -> None:
    """The whole is the allocated bytes, not the machine's free memory nor a library's request."""
    parts = {"weights": 30, "activations": 10} | ({} if "device" in more else {"cache": 39})
    full = incident(asked=8, free=1, parts=parts, **more)

    assert f"{share} is weights" in diagnose(full).sentence


def test_unknown_growth_has_no_figure() -> None:
    """The advice on concatenated predictions is given even if their size is unknown."""
    case = next(one for one in CASES if one.name.startswith("predictions that are put together"))
    for grown in (0.0, float("nan"), -GIB):
        suggestions = advise(replace(case.incident, grown=grown), diagnose(case.incident))
        (advice,) = [one for one in suggestions if "eval_accumulation_steps" in one.action]
        assert not re.search(r"\d", advice.sentence())


@pytest.mark.parametrize(
    ("tokens", "mib", "expected"),
    [(1024, 0.9, False), (1024, 1, True), (1024, 2.9, True), (1024, 4, True), (1024, 4.1, False),
     (0, 1, False), (NAN, 1, False)],
)  # fmt: skip
def test_logits_are_known_by_their_size(tokens: float, mib: float, *, expected: bool) -> None:
    """They take tokens times vocabulary, of two or four bytes, and the allocator rounds to 1 or 2 MiB."""
    path, model = spans("train", "step", tokens=tokens), ModelFacts(vocabulary=512)
    assert is_logits(incident(asked=mib / 1024, free=0.01, path=path, model=model)) is expected


@pytest.mark.parametrize(
    ("size", "parts", "words"),
    [
        (41.0, {"weights": 40.0}, "more than the 40.0 GiB of cuda:0"),
        (41.0, {"activations": 40.0}, "51 % of cuda:0"),
        (39.0, {"weights": 40.0}, "49 % of cuda:0"),
        (81.0, {"weights": 40.0}, "more than cuda:0 has in total"),
    ],
)
def test_a_huge_request_has_a_comparison(size: float, parts: dict[str, float], words: str) -> None:
    """The request is compared with the part or the memory that it exceeds, or is a share of the device."""
    diagnosis = huge(incident(asked=size, free=1.0, parts=parts))

    assert diagnosis is not None
    assert words in diagnosis.sentence


@pytest.mark.parametrize(("size", "would_fit"), [(30.0, True), (1 / GIB, True), (0.0, False)])
def test_other_processes_are_no_cause_without_a_request(size: float, *, would_fit: bool) -> None:
    """Only a known request has the sentence that it would have fit."""
    sentence = diagnose(incident(asked=size, free=1.0, others=40.0, allocated=1.0)).sentence

    assert ("would have fit" in sentence) is would_fit


@pytest.mark.parametrize(
    ("size", "free", "figures"),
    [
        (1.0, 0.5, ": 1.00 GiB requested, 512.0 MiB free"),
        (0.0, 0.5, ": 512.0 MiB free"),
        (NAN, 0.0, ": 0.00 MiB free"),
        (1.0, NAN, ": 1.00 GiB requested"),
        (NAN, NAN, ""),
    ],
)
def test_a_heading_has_the_figures_that_are_known(size: float, free: float, figures: str) -> None:
    """Zero free bytes are a figure, a request of zero bytes is not."""
    assert headline(incident(asked=size, free=free)) == f"Out of memory on cuda:0{figures}"


FULL: dict[str, Any] = {"asked": 10.0, "free": 1.0}


def in_step(*, counts: Any = None, **more: Any) -> Incident:
    """Return an error within a step, on a device of 80 GiB."""
    parts = {"weights": 20.0, "activations": 40.0, "cache": 1.0} | more.pop("parts", {})
    return incident(
        **FULL, parts=parts, path=spans("train", "step", "forward", **counts or {}), **more
    )


def advice_of(words: str, known: Incident, cause: Cause = "unknown") -> Advice | None:
    """Return the advice whose action has these words, if a cause or a part of memory calls for it."""
    listed = [*remedies(known, cause), *savings(known)]
    return next((one for one in listed if words in one.action), None)


def floats(weights: float) -> Incident:
    known = in_step(parts={"weights": weights})
    contents = Contents(dtypes={"float32": int(weights * GIB)})
    return replace(known, contents=contents, capability=(9, 0))


def sequence(samples: float, longest: float, activations: float = 40.0) -> Incident:
    counts = {"samples": samples, "longest": longest}
    return in_step(counts=counts, parts={"activations": activations})


def optimized(name: str, states: float) -> Incident:
    return incident(
        **FULL,
        parts={"weights": 20.0, "gradients": 20.0, "optimizer": states},
        path=spans("train", "step", "optimizer"),
        calls=("torch.optim.adamw._init_group", "torch.optim.adamw.step"),
        contents=Contents(optimizers=(name,), parameters=10**9, trainable=10**9),
    )


def beside(origin: Any, cache: float) -> Incident:
    parts = {"weights": 10.0, "cache": cache}
    return incident(asked=1.0, free=0.1, parts=parts, origin=origin)


def pooled(free: float) -> Incident:
    """Return an error on a GPU whose private pools have some GiB free."""
    return incident(**FULL, blocks=blocks(1.0, 0.5, private_free=free * GIB))


@pytest.mark.parametrize(
    ("words", "known", "cause", "gib"),
    [
        # A long sequence that is alone in its batch, where activations are what memory is taken by.
        ("shorter sequences", sequence(1, 512), "unknown", 20.0),
        ("shorter sequences", sequence(NAN, 4096), "unknown", 20.0),
        ("shorter sequences", sequence(1, 511), "unknown", None),
        ("shorter sequences", sequence(2, 4096), "unknown", None),
        ("shorter sequences", sequence(1, 4096, 10.0), "unknown", None),
        # Weights of float32 that take nearly half of the device.
        ("dtype=torch.bfloat16", floats(37.0), "unknown", 18.5),
        ("dtype=torch.bfloat16", floats(35.0), "unknown", None),
        # A library asked beside PyTorch's cache; PyTorch itself empties that first.
        ("empty_cache", beside("cudnn", 0.25), "full", 0.25),
        ("empty_cache", beside("cudnn", 0.2), "full", None),
        ("empty_cache", beside("cuda", 3.0), "full", None),
        # Private pools that have all of what was asked for.
        ("memory pools", pooled(10), "fragmentation", 10.0),
        ("memory pools", pooled(9.9), "fragmentation", None),
        # Lengths of which the longest is half as long again.
        ("fixed lengths", incident(**FULL, lengths=(512.0, 768.0)), "fragmentation", 0.0),
        ("fixed lengths", incident(**FULL, lengths=(512.0, 767.0)), "fragmentation", None),
        # Adam's states alone: of another optimizer it is not known what it would save.
        ("fused", optimized("FusedAdam", 20.0), "unknown", 10.0),
        ("fused", optimized("SGD", 20.0), "unknown", None),
        ("adafactor", optimized("AdamW", 20.0), "unknown", 20.0),
        ("adafactor", optimized("FusedAdam", 20.0), "unknown", 20.0),
        ("adafactor", optimized("Adafactor", 0.02), "unknown", None),
        ("adafactor", optimized("AdamW8bit", 10.0), "unknown", None),
        ("adafactor", optimized("AdamW", 1.0), "unknown", None),
    ],
)
def test_advice_has_a_reason_and_a_saving(
    words: str, known: Incident, cause: Cause, gib: float | None
) -> None:
    """It is given only if it would help, with the bytes that it would save."""
    advice = advice_of(words, known, cause)

    assert (None if advice is None else advice.bytes) == (None if gib is None else gib * GIB)


@pytest.mark.parametrize(
    ("size", "total", "ratio"),
    [
        (85.0, 80.0, "1.1\u00d7"),
        (792.0, 80.0, "9.9\u00d7"),
        (800.0, 80.0, "10\u00d7"),
        (100_000.0, 80.0, "1,250\u00d7"),
        (80.0, 80.0, ""),
        (40.0, NAN, ""),
    ],
)
def test_a_request_beyond_the_device_is_a_multiple(size: float, total: float, ratio: str) -> None:
    """It has a decimal up to ten times; a request that might fit should be made in pieces."""
    advice = advice_of("in chunks", incident(asked=size, free=1.0, total=total), "huge")

    assert advice is not None
    if ratio:
        assert f" {ratio} " in advice.reason
    else:
        assert advice.action == "Process it in chunks"


@pytest.mark.parametrize(("freed", "expected"), [(0, False), (5 * 2**30, True)])
def test_memory_that_only_an_error_holds_is_named(freed: int, *, expected: bool) -> None:
    """`%memholders --free errors` would free it."""
    advice = advise(incident(**FULL, seen=Seen(freed=freed)), OomDiagnosis("unknown", "It is."))

    assert any("%memholders --free errors" in one.action for one in advice) is expected


@pytest.mark.parametrize(
    ("reserved", "size", "share"), [(30.0, 10.0, "0.5"), (30.0, 11.0, "0.55"), (70.0, 11.0, "1")]
)
def test_a_limit_should_be_raised_to_the_need(reserved: float, size: float, share: str) -> None:
    """The limit is given in twentieths of the device, up to all of it."""
    limited = incident(asked=size, free=40.0, reserved=reserved, allowed=32.0)
    advice = advice_of("Raise", limited, "limit")

    assert advice is not None
    assert f"set_per_process_memory_fraction({share})" in advice.action


@pytest.mark.parametrize(
    ("processes", "named", "saving"),
    [
        ({}, "; nvidia-smi lists them", "30.0 GiB"),
        ({7: 1, 8: 9}, ": process 8 (9.00 GiB), process 7 (1.00 GiB)", ""),
        (
            {1: 1, 2: 2, 3: 3, 4: 4},
            ": process 4 (4.00 GiB), process 3 (3.00 GiB), process 2 (2.00 GiB)",
            "",
        ),
    ],
)
def test_other_processes_are_named(processes: dict[int, int], named: str, saving: str) -> None:
    """At most three are named; if none is known, the tool that lists them is."""
    listed = tuple((number, size * GIB) for number, size in processes.items())
    advice = advice_of("Stop", incident(**FULL, others=30.0, processes=listed), "others")

    assert advice is not None
    assert advice.action == f"Stop other processes on the GPU{named}"
    assert (advice.saving, advice.bytes) == (saving, 30 * GIB)


def test_advice_has_a_size_once() -> None:
    """A saving that its reason has already is not repeated."""
    assert Advice("Free it", "it holds 5.00 GiB", "5.00 GiB").sentence() == (
        "Free it. It holds 5.00 GiB."
    )

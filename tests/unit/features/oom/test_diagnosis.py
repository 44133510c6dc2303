"""Why memory ran out, and what to change: scripted errors of which the reason is known."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import make_dataclass, replace
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hfmem_widget.features.oom.advice import MOST, TECHNIQUES, Technique, advise
from hfmem_widget.features.oom.diagnosis import diagnose, huge, in_optimizer, is_logits, training
from hfmem_widget.features.oom.errors import (
    MOST_ERRORS,
    Origin,
    OutOfMemoryText,
    about_memory,
    read_text,
)
from hfmem_widget.features.oom.html import WHO, batch, where
from hfmem_widget.features.oom.incident import (
    CONTEXT_UP_TO,
    SAME_WITHIN,
    _others,
    belongs_to,
    device_of,
    failure_of,
    incident_of,
)
from hfmem_widget.features.oom.model import (
    NAMES,
    Failure,
    Incident,
    ModelFacts,
    OomDiagnosis,
    OomEvent,
)
from hfmem_widget.features.oom.observer import BACKWARD
from hfmem_widget.features.oom.report import caught_finding, finding_of, headline
from hfmem_widget.session import Device, Recorder, Sample, Series, Session, Span
from hfmem_widget.text import GIB, MIB, size_text
from tests.data import ROOT
from tests.data.oom_incidents import CASES, GPU, HOST, Case, incident, spans
from tests.data.parted import NAN


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_reason_is_found(case: Case) -> None:
    """Of each scripted error the reason is the one that the script has."""
    assert diagnose(case.incident).cause == case.cause


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_advice_has_a_reason_here(case: Case) -> None:
    """What applies is said, in order; what does not apply is not; never more than five."""
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
    """A sentence begins with a capital, ends with one stop, and has no figure that is not known."""
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
def test_checkpointing_is_called_as_the_installed_transformers_does(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], option: str
) -> None:
    """The old name is deprecated where there is a new one, and holds where nothing is known."""
    module = ModuleType("transformers.training_args")
    if arguments:
        module.__dict__["TrainingArguments"] = make_dataclass("TrainingArguments", arguments)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    told = advise(CASES[0].incident, diagnose(CASES[0].incident))

    assert f"({option}=True)" in told[0].action


def test_a_finding_has_the_numbers() -> None:
    """The finding is critical, of the span, and its evidence is whole bytes."""
    case = CASES[0]
    diagnosis = diagnose(case.incident)
    finding = finding_of(case.incident, diagnosis, (), spans()[0])
    assert (finding.kind, finding.severity, finding.span_id) == ("oom", "critical", 1)
    for evidence in ("cuda:0", "2.00 GiB", "1.00 GiB free", NAMES["full"]):
        assert evidence in finding.title
    assert finding.evidence["asked"] == 2 * GIB
    assert finding.evidence["cause"] == "full"


def test_what_a_part_gives_back_is_exact() -> None:
    """Half of the weights is half of them, to the byte; states that are not made are all of them."""
    loading = next(case for case in CASES if "float32 weights" in case.name)
    (half, *_) = advise(loading.incident, diagnose(loading.incident))
    assert half.bytes == loading.incident.part("weights") / 2
    first = next(case for case in CASES if "first step" in case.name)
    states = next(
        one for one in advise(first.incident, diagnose(first.incident)) if "adafactor" in one.action
    )
    assert "52.0 GiB" in states.reason


ROW = r"\| {} \| (\d+) \| .*\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| \d+ \| ([\d.]+) \|"


@pytest.mark.parametrize("technique", TECHNIQUES.values(), ids=TECHNIQUES)
def test_what_is_called_measured_stands_in_the_table(technique: Technique) -> None:
    """Every ratio is that of the table of what each technique saves."""
    table = (ROOT / "docs/measured/anatomy.md").read_text(encoding="utf-8")
    parts = ("weights", "optimizer", "gradients", "activations")

    def row(name: str) -> tuple[float, dict[str, float], float]:
        match = re.search(ROW.format(re.escape(name)), table)
        assert match is not None, name
        peak, *sizes, speed = map(float, match.groups())
        return peak, dict(zip(parts, sizes, strict=True)), speed

    before, after = row("vanilla"), row(technique.row)
    assert technique.peak == pytest.approx(after[0] / before[0])
    assert technique.left == pytest.approx(after[1][technique.part] / before[1][technique.part])
    assert technique.speed == pytest.approx(after[2] / before[2])


def test_sizes_beyond_any_machine() -> None:
    """From 1000 GiB on a size is told in TiB, from 1000 TiB on in PiB."""
    assert [size_text(one) for one in (2.0 * GIB, 2**50, 2**60)] == [
        "2.00 GiB",
        "1.00 PiB",
        "1024 PiB",
    ]
    assert size_text(3 * 1024 * GIB) == "3.00 TiB"


SIZES = st.one_of(st.just(float("nan")), st.floats(0, 1e15))


@given(
    origin=st.sampled_from(list(WHO)),
    sizes=st.lists(SIZES, min_size=8, max_size=8),
    case=st.sampled_from(CASES),
)
def test_no_figures_make_it_raise(origin: Origin, sizes: list[float], case: Case) -> None:
    """Whatever is known or not, there is a diagnosis in a sentence, and advice with reasons."""
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
    places = [page.index(f"| {name} |") for name in NAMES.values()]
    assert places == sorted(places)


def test_a_guess_at_why_memory_ran_out_says_so_in_its_name() -> None:
    """The name of a cause that is not certain has a "probably"."""
    assert OomDiagnosis("huge", "It may be.", is_sure=False).name == f"probably {NAMES['huge']}"


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ((BACKWARD, "torch._tensor.backward", "__main__.train"), ("backward pass",)),
        (
            ("torch.nn.functional.linear", "torch.utils.checkpoint.unpack_hook", BACKWARD),
            ("backward pass", "checkpoint recomputation"),
        ),
        # Around the backward pass there is a checkpoint, but nothing of it was run there.
        ((BACKWARD, "torch.utils.checkpoint.backward"), ("backward pass",)),
        (("torch.nn.functional.linear", "__main__.train"), ()),
    ],
)
def test_a_backward_pass_is_a_place(calls: tuple[str, ...], told: tuple[str, ...]) -> None:
    """Without a span for it, too, and what is made again there is told."""
    assert where(incident(asked=1, free=0, calls=calls)) == told


def test_what_called_a_backward_pass_did_not_ask() -> None:
    """An optimizer whose closure calls backward(), such as LBFGS, is not what ran out."""
    calls = (BACKWARD, "torch._tensor.backward", "__main__.closure", "torch.optim.lbfgs.step")
    assert not in_optimizer(incident(asked=1, free=0, calls=calls))
    assert training(incident(asked=1, free=0, calls=calls))


@pytest.mark.parametrize(
    ("total", "told"),
    [
        (64, ["512.0 MiB", "64.0 GiB"]),
        (float("nan"), []),
    ],
)
def test_a_full_machine_is_told_by_its_own_figures(total: float, told: list[str]) -> None:
    """Where they are known."""
    full = incident(asked=4, free=0.5, total=total, device=HOST, origin="cpu", allocated=60)

    assert re.findall(r"[\d.]+ [MG]iB", diagnose(full).sentence)[:2] == told


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
def test_the_share_of_the_biggest_part_is_said_of_what_it_is_of(
    more: dict[str, Any], told: str
) -> None:
    """The allocated bytes: not what is free on the machine, nor what a library asked for."""
    parts = {"weights": 30, "activations": 10} | ({} if "device" in more else {"cache": 39})
    full = incident(asked=8, free=1, parts=parts, **more)

    assert told in diagnose(full).sentence


def test_growth_that_is_not_known_has_no_figure() -> None:
    """Predictions that are put together are advised about, whatever is known of their size."""
    case = next(one for one in CASES if one.name.startswith("predictions that are put together"))
    for grown in (0.0, float("nan"), -GIB):
        told = advise(replace(case.incident, grown=grown), diagnose(case.incident))
        (one,) = [one for one in told if "eval_accumulation_steps" in one.action]
        assert not re.search(r"\d", one.sentence())


@pytest.mark.parametrize(
    ("mib", "are"), [(0.9, False), (1.0, True), (2.0, True), (2.9, True), (4.0, True), (4.1, False)]
)
def test_logits_are_known_by_their_size(mib: float, *, are: bool) -> None:
    """Tokens by words, of two or four bytes, and what the allocator rounds up: here of 1 or 2 MiB."""
    case = next(one.incident for one in CASES if one.name == "logits, by their size")
    words = int(2**19 / case.batch_tokens)
    small = replace(case, asked=mib * MIB, model=replace(case.model, vocabulary=words))

    assert words * case.batch_tokens == 2**19
    assert is_logits(small) is are


@pytest.mark.parametrize(
    ("told", "sampled", "others"),
    [
        ({"processes": ((1, 60), (2, 10))}, NAN, 60),
        ({"processes": ((1, 60), (2, 12))}, NAN, 72),
        ({"processes": ((1, 60), (2, 8))}, NAN, 68),
        ({"processes": ((1, 10), (2, 10))}, NAN, 10),
        ({"processes": ((2, 10),)}, NAN, 0),
        ({"processes": ((2, 10),)}, 5, 5),
        ({"processes": ((1, 60),), "in_use": 9}, 5, 60),
        ({"processes": ((2, 10),), "in_use": 9}, 5, 10),
        ({"in_use": 20}, NAN, 50),
        ({"in_use": 75}, NAN, 0),
        ({}, NAN, 61),
    ],
)
def test_what_others_have_is_told_by_who_knows_best(
    told: dict[str, Any], sampled: float, others: float
) -> None:
    """Of 70 GiB in use this process has 9, and up to 2 more for CUDA; whose number is not ours is another."""
    given: dict[str, Any] = {
        name: tuple((one, size * GIB) for one, size in value)
        if name == "processes"
        else value * GIB
        for name, value in told.items()
    }
    text = OutOfMemoryText("cuda", **given)

    assert _others(text, 70 * GIB, 9 * GIB, sampled * GIB) == others * GIB


@pytest.mark.parametrize(("used", "others"), [(10.9, NAN), (11.1, 2.1)])
def test_a_little_beyond_what_is_reserved_may_be_a_context(used: float, others: float) -> None:
    """Then nobody knows whose it is."""
    found = _others(OutOfMemoryText("cuda"), used * GIB, 9 * GIB, NAN)

    assert found == pytest.approx(others * GIB, nan_ok=True)


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"samples": 8, "longest": 512, "tokens": 4096}, "8 \u00d7 512 tokens"),
        ({"samples": 8, "longest": 512, "tokens": 4000}, "4,000 tokens"),
        ({"tokens": 4000}, "4,000 tokens"),
        ({"samples": 8}, "8 samples"),
        ({"samples": 1}, "1 sample"),
        ({}, ""),
    ],
)
def test_a_batch_is_told_by_what_is_known_of_it(counts: dict[str, float], told: str) -> None:
    """Samples by tokens where they come to the same; else the one that is known."""
    full = incident(asked=4, free=0.5, path=spans("train", "step", **counts))

    assert batch(full) == told


@pytest.mark.parametrize(
    ("around", "found"), [(0, True), (MOST_ERRORS - 1, True), (MOST_ERRORS, False)]
)
def test_an_error_is_looked_for_among_so_many(around: int, *, found: bool) -> None:
    """That what it was raised from is about memory is found through a few others, not through any number."""
    inner: BaseException = MemoryError("no room")
    one = inner
    for at in range(around):
        outer = ValueError(str(at))
        outer.__cause__ = one
        one = outer

    reason = about_memory(one)
    assert (reason is not None and reason[0] is inner) is found


@pytest.mark.parametrize(
    ("tokens", "asked", "said"), [(0, 0.001, False), (NAN, 0.001, False), (1000, 0.1, True)]
)
def test_of_no_tokens_there_are_no_logits(tokens: float, asked: float, *, said: bool) -> None:
    """A small request is not taken for them."""
    one = incident(
        asked=asked,
        free=0.01,
        path=spans("train", "step", tokens=tokens),
        model=ModelFacts(vocabulary=26843),
    )

    assert is_logits(one) is said


class OddConfig:
    """A configuration that has nothing yet."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class Odd(torch.nn.Module):  # type: ignore[misc]  # torch is not checked here
    """A model whose configuration cannot be read."""

    def __init__(self) -> None:
        super().__init__()
        self.config = OddConfig()


def test_an_odd_model_costs_no_explanation() -> None:
    """What the others say is told."""
    usual = torch.nn.Module()
    usual.gradient_checkpointing = True
    failure = failure_of(
        torch.OutOfMemoryError("CUDA out of memory."),
        Sample(0.0, ()),
        [Odd(), usual],
        ran_out=False,
    )

    assert failure is not None
    assert failure.model.checkpointing


GPUS = tuple(Device(f"cuda:{at}", "NVIDIA H200", total=80 * GIB) for at in range(2))


def session_of(*used: float) -> tuple[Session, Sample]:
    recorder, sample = recorder_of(*used)
    return recorder.session, sample


def recorder_of(*used: float) -> tuple[Recorder, Sample]:
    """Return what writes a session of two GPUs that have so many GiB allocated, and its reading."""
    recorder = Recorder("run")
    series = [Series(one.key, metric) for one in GPUS for metric in ("allocated", "reserved")]
    recorder.adopt(GPUS, series)
    values = tuple(value * GIB for one in used for value in (one, one + 1))
    return recorder, recorder.append(Sample(0.0, values))


def told(origin: Any = "cuda", **more: Any) -> OutOfMemoryText:
    return OutOfMemoryText(origin, **more)


@pytest.mark.parametrize(
    ("used", "about", "key"),
    [
        ((1.0, 2.0), {}, "cuda:1"),
        ((2.0, 1.0), {}, "cuda:0"),
        ((NAN, 0.5), {}, "cuda:1"),
        ((0.0, NAN), {}, "cuda:0"),
        ((1.0, 2.0), {"device": "cuda:0"}, "cuda:0"),
        ((1.0, 2.0), {"device": "xpu:3"}, "xpu:3"),
    ],
)
def test_an_error_is_about_the_gpu_that_has_most(
    used: tuple[float, ...], about: dict[str, str], key: str
) -> None:
    """Unless it says itself which it is about."""
    session, _ = session_of(*used)

    assert device_of(session, told(**about), None).key == key


def test_what_apples_allocator_may_use_is_its_capacity() -> None:
    """It recommends a limit, and knows of no other."""
    session, sample = session_of(1.0, 2.0)
    text = told("mps", device="mps:0", allowed=20 * GIB, total=5.0)
    found = incident_of(session, Failure(text, sample))

    assert found.total == 20 * GIB
    assert math.isnan(found.allowed)


OURS, OTHER = (7, 4.0 * GIB), (8, 9.0 * GIB)


@pytest.mark.parametrize(
    ("reserved", "in_use", "foreign"),
    [
        (4.0, NAN, [8]),
        (4.0 - CONTEXT_UP_TO / GIB, NAN, [8]),
        (4.0 - CONTEXT_UP_TO / GIB - 0.01, NAN, [7, 8]),
        (4.01, NAN, [7, 8]),
        (NAN, NAN, [7, 8]),
        (4.0, 4.0, [7, 8]),
    ],
)
def test_a_process_as_large_as_this_one_is_this_one(
    reserved: float, in_use: float, foreign: list[int]
) -> None:
    """In a container, whose driver knows it by another id: what PyTorch has, and a context beside it."""
    recorder, _ = recorder_of(1.0, 2.0)
    session = recorder.session
    sample = recorder.append(Sample(1.0, (GIB, reserved * GIB, 0.0, 0.0)))
    text = told(device="cuda:0", processes=(OURS, OTHER), in_use=in_use * GIB, free=GIB)
    found = incident_of(session, Failure(text, sample))

    assert [pid for pid, _ in found.processes] == foreign
    assert found.others == sum(size for pid, size in (OURS, OTHER) if pid in foreign)


@pytest.mark.parametrize(
    ("free", "in_use", "processes", "others"),
    [
        (70.0, NAN, (), NAN),
        (66.0, NAN, (), NAN),
        (65.9, NAN, (), 2.1),
        (10.0, 15.0, (), 55.0),
        (70.0, 15.0, (), 0.0),
        (10.0, NAN, ((7, 12 * GIB),), 0.0),
    ],
)
def test_what_others_have_is_what_is_left_unless_it_may_be_ours(
    free: float, in_use: float, processes: tuple[tuple[int, float], ...], others: float
) -> None:
    """Beyond what PyTorch reserved there is a context of this process', of two GiB at most."""
    recorder, _ = recorder_of(1.0, 2.0)
    session = recorder.session
    sample = recorder.append(Sample(1.0, (10 * GIB, 12 * GIB, 0.0, 0.0)))
    text = told(
        device="cuda:0", total=80 * GIB, free=free * GIB, in_use=in_use * GIB, processes=processes
    )

    assert incident_of(session, Failure(text, sample)).others == pytest.approx(
        others * GIB, nan_ok=True
    )


@pytest.mark.parametrize(
    ("asked", "device", "origin", "same"),
    [
        (1.0, "cuda:0", "cuda", True),
        (1.0 + SAME_WITHIN, "cuda:0", "cuda", True),
        (1.0 + 2 * SAME_WITHIN, "cuda:0", "cuda", False),
        (NAN, "", "cuda", True),
        (NAN, "", "no batch size", True),
        (1.0, "cuda:1", "cuda", False),
        (1.0, "cuda:0", "cublas", False),
    ],
)
def test_an_error_is_of_an_event_if_it_asked_for_as_much(
    asked: float, device: str, origin: str, *, same: bool
) -> None:
    """Of the same device; a text has two decimals, and may say nothing."""
    event = OomEvent("cuda:0", GIB, 80 * GIB, 0.0)

    assert belongs_to(told(origin, device=device, asked=asked * GIB), event) is same


@pytest.mark.parametrize(
    ("text", "unallocated"),
    [
        ("2.00 GiB already allocated; 3.00 GiB reserved in total", GIB),
        ("2.00 GiB already allocated; 2.00 GiB reserved in total", 0.0),
        ("2.00 GiB already allocated; 1.00 GiB reserved in total", 0.0),
        ("2.00 GiB already allocated", NAN),
    ],
)
def test_what_is_reserved_beyond_tensors_is_worked_out(text: str, unallocated: float) -> None:
    """Where an older text does not say it itself; it is never less than nothing."""
    found = read_text(f"CUDA out of memory. Tried to allocate 1.00 GiB ({text} by PyTorch)")

    assert found is not None
    assert found.unallocated == pytest.approx(unallocated, nan_ok=True)


@pytest.mark.parametrize(
    ("asked", "parts", "how"),
    [
        (41.0, {"weights": 40.0}, "more than the 40.0 GiB of cuda:0"),
        (41.0, {"activations": 40.0}, "51 % of cuda:0"),
        (39.0, {"weights": 40.0}, "49 % of cuda:0"),
        (81.0, {"weights": 40.0}, "more than cuda:0 has in total"),
    ],
)
def test_a_huge_request_is_held_against_what_the_model_leaves(
    asked: float, parts: dict[str, float], how: str
) -> None:
    """Where the model itself holds something; else against all there is."""
    found = huge(incident(asked=asked, free=1.0, parts=parts))

    assert found is not None
    assert how in found.sentence


@pytest.mark.parametrize(("asked", "promised"), [(30.0, True), (1 / GIB, True), (0.0, False)])
def test_others_are_no_reason_for_what_nobody_asked_for(asked: float, *, promised: bool) -> None:
    """That it would have fit is said of a request."""
    sentence = diagnose(incident(asked=asked, free=1.0, others=40.0, allocated=1.0)).sentence

    assert ("would have fit" in sentence) is promised


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"samples": 8, "longest": 512, "tokens": 4096}, "8 \u00d7 512 tokens"),
        ({"samples": 8, "longest": 512, "tokens": 4095}, "4,095 tokens"),
        ({"samples": 0, "longest": 512, "tokens": 0}, ""),
        ({"samples": 1}, "1 sample"),
        ({"samples": 2}, "2 samples"),
        ({"samples": 2, "longest": 0, "tokens": 0}, "2 samples"),
        ({"tokens": 1}, "1 tokens"),
        ({}, ""),
    ],
)
def test_a_batch_is_told_as_far_as_it_is_known(counts: dict[str, float], words: str) -> None:
    """As a rectangle where it is one."""
    assert batch(incident(asked=1.0, free=0.5, path=spans("step", **counts))) == words


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
    """Nothing is free, but nothing was not asked for."""
    assert headline(incident(asked=asked, free=free)) == f"Out of memory on cuda:0{words}"


@pytest.mark.parametrize(("count", "words"), [(1, "An out-of-memory error was"), (3, "3 out-of")])
def test_errors_that_were_caught_are_counted(count: int, words: str) -> None:
    """With what the last of them asked for."""
    last = OomEvent("cuda:0", 2 * GIB, 80 * GIB, GIB)
    found = caught_finding(last, count, Span(7, "cell", "x", 0.0, Sample(0.0, ())))

    assert found.title.startswith(words)
    assert found.evidence == {
        "device": "cuda:0", "caught": count, "asked": int(2 * GIB), "free": int(GIB)
    }  # fmt: skip
    assert (found.kind, found.severity, found.span_id) == ("oom", "info", 7)


def test_where_it_happened_is_told_once() -> None:
    """From the outside in, without the cell; the backward pass also where no span says it."""
    one = incident(asked=1.0, free=0.5, path=spans("train", "step", "forward", step=3))
    again = ("torch.utils.checkpoint.f", "torch.autograd.graph._engine_run_backward")

    assert where(one) == ("train", "step 3", "forward")
    assert where(replace(one, calls=again)) == (
        "train", "step 3", "forward", "backward pass", "checkpoint recomputation"
    )  # fmt: skip

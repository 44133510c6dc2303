"""`MemoryCallback(log=True)` adds its figures to what the Trainer logs, for everybody who reads that."""

import math
from pathlib import Path
from typing import Any

import pytest
from transformers import TrainerCallback

import hfmem_widget
from hfmem_widget import MemoryCallback
from hfmem_widget.drivers.training.run import logged, prefix_of
from hfmem_widget.ranks.run import Run
from hfmem_widget.text import GIB
from tests.fakes.ranks import Script, SimulatedRun
from tests.trainer.tiny import make_trainer, of_kind, rows, session_of

OF_AN_EVALUATION = {"hfmem/peak_allocated_gib", "hfmem/peak_reserved_gib", "hfmem/allocated_gib"}
STEP_KEYS = OF_AN_EVALUATION | {"hfmem/tokens"}
EVERY_STEP: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1}


def ours(entry: dict[str, Any]) -> set[str]:
    return {key for key in entry if "hfmem/" in key}


def logging(folder: Path, **options: Any) -> Any:
    """Return a Trainer whose logs have our figures."""
    return make_trainer(folder, callbacks=[MemoryCallback(log=True)], **options)


def of_steps(trainer: Any) -> list[dict[str, Any]]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


def of_evaluation(prefix: str) -> set[str]:
    return {f"{prefix}_{key}" for key in OF_AN_EVALUATION}


class Reads(TrainerCallback):  # type: ignore[misc]  # transformers is not checked here
    """Keeps what it is told to log, as TensorBoard's callback would write it."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
        self.entries.append(dict(logs))


@pytest.mark.parametrize("ours_first", [True, False])
def test_every_callback_reads_the_figures(tmp_path: Path, *, ours_first: bool) -> None:
    """A callback that stands before ours in the list reads them, too."""
    reads, memory = Reads(), MemoryCallback(log=True)
    callbacks = [memory, reads] if ours_first else [reads, memory]
    session_of(make_trainer(tmp_path, callbacks=callbacks, **EVERY_STEP))

    steps = [entry for entry in reads.entries if "loss" in entry]
    assert [ours(entry) for entry in steps] == [STEP_KEYS, STEP_KEYS]
    assert all(isinstance(entry[key], float) for entry in steps for key in STEP_KEYS)


def test_a_log_covers_the_steps_since_the_last(tmp_path: Path) -> None:
    """A log has the highest peak of its steps in GiB, and the sum of their tokens, padding included."""
    trainer = logging(tmp_path, num_train_epochs=2, **EVERY_STEP | {"logging_steps": 2})
    session = session_of(trainer)

    peaks = [span.peaks["cpu/allocated"].value for span in of_kind(session, "step")]
    assert [entry["hfmem/peak_allocated_gib"] * GIB for entry in of_steps(trainer)] == [
        pytest.approx(max(peaks[:2])),
        pytest.approx(max(peaks[2:])),
    ]
    assert [entry["hfmem/tokens"] for entry in of_steps(trainer)] == [36 + 32, 36 + 32]


def test_the_figures_are_in_gib(tmp_path: Path) -> None:
    """Allocated memory is that of the time of the log, not above the peak; reserved is its own figure."""
    trainer = logging(tmp_path, **EVERY_STEP)
    session = session_of(trainer)

    entry = trainer.state.log_history[0]
    after = of_kind(session, "step")[0].after
    assert after is not None
    assert entry["hfmem/allocated_gib"] * GIB == pytest.approx(
        session.value(after, "cpu/allocated"), rel=0.2
    )
    assert 0 < entry["hfmem/allocated_gib"] <= entry["hfmem/peak_allocated_gib"]
    assert entry["hfmem/peak_reserved_gib"] * GIB >= session.value(after, "cpu/reserved") * 0.9


def test_an_evaluations_log_has_its_own_peak(tmp_path: Path) -> None:
    """Figures of an evaluation have the prefix of its metrics, with several data sets, too."""
    trainer = logging(tmp_path, eval_strategy="steps", eval_steps=1)
    trainer.eval_dataset = {"short": rows((3, 3)), "long": rows((9, 9))}
    session = session_of(trainer)

    logs = [entry for entry in trainer.state.log_history if any("eval_" in key for key in entry)]
    names = ["eval_short", "eval_long"] * 2
    assert [ours(entry) for entry in logs] == [of_evaluation(name) for name in names]
    peaks = [
        span.peaks["cpu/allocated"].value
        for span in of_kind(session, "evaluate")
        if session.span(span.parent or 0).kind == "evaluate"
    ]
    assert [
        entry[f"{name}_hfmem/peak_allocated_gib"] * GIB
        for name, entry in zip(names, logs, strict=True)
    ] == pytest.approx(peaks, rel=0.05)


def test_an_evaluation_by_hand_is_logged_too(tmp_path: Path) -> None:
    """Figures have the prefix that the user gives to the metrics."""
    trainer = logging(tmp_path)
    with hfmem_widget.watch(quiet=True):
        trainer.evaluate(metric_key_prefix="test")

    assert ours(trainer.state.log_history[-1]) == of_evaluation("test")


@pytest.mark.parametrize("callbacks", [[], [MemoryCallback]])
def test_logs_have_no_figures_of_ours_unasked(tmp_path: Path, callbacks: list[Any]) -> None:
    """Without `log=True` the logs are the user's own."""
    reads = Reads()
    trainer = make_trainer(
        tmp_path, callbacks=[*callbacks, reads], eval_strategy="epoch", **EVERY_STEP
    )
    session_of(trainer)

    assert len(reads.entries) == 4
    assert not any(ours(entry) for entry in [*reads.entries, *trainer.state.log_history])


def test_unknown_figures_are_left_out() -> None:
    """A log has no NaN, which some readers of logs refuse."""
    figures = {"peak_allocated": 1.5 * GIB, "peak_reserved": math.nan}

    assert logged(figures) == {"hfmem/peak_allocated_gib": 1.5}
    assert logged(figures, prefix="eval") == {"eval_hfmem/peak_allocated_gib": 1.5}


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["eval_loss", "eval_runtime", "epoch"], "eval"),
        (["eval_short_loss", "eval_short_runtime"], "eval_short"),
        (["test_loss", "test_runtime"], "test"),
        (["eval_longest_runtime", "eval_runtime", "eval_loss"], "eval"),
        (["my_own_metric"], "eval"),
    ],
)
def test_the_prefix_is_the_one_in_use(names: list[str], prefix: str) -> None:
    """The prefix is that of the runtime, which every evaluation logs; other metrics may resemble it."""
    assert prefix_of(names) == prefix


def test_tensorboard_reads_the_figures(tmp_path: Path) -> None:
    """TensorBoard's reader finds them in the groups of the training and of the evaluation."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    trainer = logging(tmp_path, eval_strategy="epoch", report_to="tensorboard", **EVERY_STEP)
    session_of(trainer)

    (file,) = tmp_path.rglob("events.out.tfevents.*")
    events = reader.EventAccumulator(str(file))
    events.Reload()
    history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert [one.value for one in events.Scalars("eval/hfmem/peak_allocated_gib")] == [
        pytest.approx(entry["eval_hfmem/peak_allocated_gib"]) for entry in history
    ]
    assert len(events.Scalars("train/hfmem/peak_allocated_gib")) == 2


def test_one_rank_logs_the_figures_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank logs figures of the whole run beside its own; an evaluation's log has its own alone."""
    SimulatedRun(Script(world=4)).write(tmp_path / "run", 10.0)
    monkeypatch.setattr("hfmem_widget.drivers.trainer.directory_here", lambda: tmp_path / "run")
    callback = MemoryCallback(log=True, ranks=True)
    trainer = make_trainer(tmp_path, callbacks=[callback], **EVERY_STEP)
    run = Run(tmp_path / "run")
    run.look()
    monkeypatch.setattr("hfmem_widget.ranks.run.Run", lambda _directory: run)
    monkeypatch.setattr(run, "start", lambda: None)
    with hfmem_widget.watch(quiet=True):
        trainer.train()
        evaluated = trainer.evaluate()

    assert [entry["hfmem/ranks/reporting"] for entry in of_steps(trainer)] == [4.0, 4.0]
    assert not any("ranks" in name for name in evaluated)


def test_a_training_that_is_no_rank_says_once_how_to_log_those_of_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A training that is no rank logs its own figures."""
    trainer = make_trainer(tmp_path, callbacks=[MemoryCallback(log=True, ranks=True)], **EVERY_STEP)
    session_of(trainer)

    assert [ours(entry) for entry in of_steps(trainer)] == [STEP_KEYS, STEP_KEYS]
    assert capsys.readouterr().err.count("hfmem run") == 1

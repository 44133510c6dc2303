"""A model that transformers loads: its shards as spans, and which files its tensors complete."""

import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from safetensors.torch import save_file

import hfmem_widget
from hfmem_widget.drivers import install as attaching
from hfmem_widget.drivers import loading
from hfmem_widget.drivers.loading import Shards
from hfmem_widget.monitor.monitor import Monitor
from hfmem_widget.monitor.patch import surround, surround_all
from hfmem_widget.monitor.process import process_state
from hfmem_widget.monitor.shared import running_monitor
from hfmem_widget.session import Session

Load = Callable[[str], object]


def modeling(load: Load = lambda file: file, *, threads: bool = False) -> Any:
    """Return a module with what of `transformers.modeling_utils` has to do with loading."""
    module: Any = ModuleType("transformers.modeling_utils")

    class PreTrainedModel:
        @classmethod
        def from_pretrained(cls, files: list[str], **others: object) -> object:
            return cls._load_pretrained_model(object(), None, files, "a name")

        @classmethod
        def _load_pretrained_model(
            cls, model: object, _state_dict: object, files: list[str], _name: str
        ) -> object:
            every = [(file, None) for file in files]
            if threads:
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(module.load_shard_file, every))
            else:
                for args in every:
                    module.load_shard_file(args)
            return model

    def load_shard_file(args: tuple[str, object]) -> object:
        return load(args[0])

    module.PreTrainedModel = PreTrainedModel
    module.load_shard_file = load_shard_file
    module.originals = dict(vars(PreTrainedModel)), load_shard_file
    return module


def follow(module: ModuleType) -> None:
    places = [place for place in loading.PLACES if place.module == module.__name__]
    with patch.dict(sys.modules, {module.__name__: module}):
        surround_all(places)


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    assert process_state(loading.Loads).calls == []


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Return three shards of 400 bytes."""
    paths = [str(tmp_path / f"{number}.safetensors") for number in range(3)]
    for path in paths:
        save_file({path: torch.zeros(100)}, path)
    return paths


def followed_model(load: Load = lambda file: file, *, threads: bool = False) -> Any:
    """Return the class of a model whose loads are followed."""
    module = modeling(load, threads=threads)
    follow(module)
    return module.PreTrainedModel


def loaded(files: list[str], load: Load = lambda file: file, *, threads: bool = False) -> Session:
    """Return the session of a watch in which a model was loaded from files."""
    model = followed_model(load, threads=threads)
    with hfmem_widget.watch(quiet=True) as session:
        model.from_pretrained(files)
    return session


def described(session: Session) -> list[tuple[str, str, str, dict[str, float]]]:
    return [(one.kind, one.label, one.outcome, dict(one.counts)) for one in session.spans[1:]]


def test_a_load_and_each_of_its_shards_is_a_span(files: list[str]) -> None:
    """A load and its shards have spans with the bytes from the headers of the files."""
    session = loaded(files)

    shards = [("shard", f"shard {one} of 3", "done", {"bytes": 400.0}) for one in (1, 2, 3)]
    counts = {"shards": 3.0, "bytes": 1200.0}
    assert described(session) == [("load", "load PreTrainedModel", "done", counts), *shards]
    assert {one.parent for one in session.spans[2:]} == {session.spans[1].id}


def test_while_it_loads_the_shard_is_open(files: list[str]) -> None:
    """The open spans say how far a load is."""
    labels = []
    model = followed_model(lambda _: labels.append([one.label for one in session.open_spans]))
    with hfmem_widget.watch("all", quiet=True) as session:
        model.from_pretrained(files)

    assert labels == [["all", "load PreTrainedModel", f"shard {one} of 3"] for one in (1, 2, 3)]


def test_one_file_has_no_shards(files: list[str]) -> None:
    """A load of one file has no span for it."""
    session = loaded(files[:1])

    counts = {"shards": 1.0, "bytes": 400.0}
    assert described(session) == [("load", "load PreTrainedModel", "done", counts)]


def test_a_load_with_unknown_bytes_tells_none(tmp_path: Path, files: list[str]) -> None:
    """A load with a file whose bytes are unknown has no number of bytes."""
    pickled = tmp_path / "pytorch_model.bin"
    pickled.write_bytes(b"")
    session = loaded([*files, str(pickled)])

    assert session.spans[1].counts == {"shards": 4.0}
    assert [one.counts for one in session.spans[2:]] == [*3 * [{"bytes": 400.0}], {}]


def test_what_is_read_on_several_threads_has_no_shards(files: list[str]) -> None:
    """A load that reads shards on several threads at once has no spans for them."""
    session = loaded(files, threads=True)

    assert [label for _, label, *_ in described(session)] == ["load PreTrainedModel"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(OSError("the disk"), "raised OSError"), (KeyboardInterrupt(), "interrupted")],
)
def test_errors_end_spans_and_stay(files: list[str], error: BaseException, outcome: str) -> None:
    """The caller gets the very same error, and the spans have it as their outcome."""

    def load(file: str) -> None:
        if file == files[1]:
            raise error

    model = followed_model(load)
    with hfmem_widget.watch(quiet=True) as session, pytest.raises(type(error)) as raised:
        model.from_pretrained(files)

    assert raised.value is error
    assert [(label, how) for _, label, how, _ in described(session)] == [
        ("load PreTrainedModel", outcome),
        ("shard 1 of 3", "done"),
        ("shard 2 of 3", outcome),
    ]


def test_one_may_load_another(files: list[str]) -> None:
    """A model made of models has a load for each, with its own shards."""
    inner = followed_model()
    session = loaded(files[1:], lambda file: inner.from_pretrained([file, files[0]]))
    inner_labels = ["load PreTrainedModel", "shard 1 of 2", "shard 2 of 2"]

    assert [label for _, label, *_ in described(session)] == [
        "load PreTrainedModel",
        *("shard 1 of 2", *inner_labels),
        *("shard 2 of 2", *inner_labels),
    ]


def test_a_name_from_outside_is_plain_text(files: list[str]) -> None:
    """Control characters in a class' name are removed from the label."""
    hostile: Any = type("A\u202e\n<b>$x$", (followed_model(),), {})
    with hfmem_widget.watch(quiet=True) as session:
        hostile.from_pretrained(files[:1])

    assert session.spans[1].label == "load A <b>$x$"


def test_unwatched_nothing_is_followed(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is watched, a call only asks whether something is."""
    monkeypatch.setattr(loading, "Load", None)

    assert followed_model().from_pretrained(files) is not None


def test_a_watch_may_end_meanwhile(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The model is loaded, and nothing is said."""
    watch = hfmem_widget.watch(quiet=True)
    model = followed_model(
        lambda file: watch.__exit__(None, None, None) if file == files[1] else None
    )
    with watch as session:
        model.from_pretrained(files)

    assert not session.running
    assert capsys.readouterr().err == ""


def test_a_fault_of_ours_leaves_the_load_as_it_is(
    files: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault is one line on stderr, and the model is loaded."""
    monkeypatch.setattr(Monitor, "turn", Mock(side_effect=RuntimeError("broken")))
    paths: list[str] = []
    session = loaded(files, paths.append)

    assert paths == files
    assert capsys.readouterr().err.count("broken") == 1
    assert all(one.stop is not None for one in session.spans)


def test_all_that_is_followed_is_waited_for() -> None:
    """Attaching waits for every module in which something is followed."""
    assert {place.module for place in loading.PLACES} <= attaching.FOLLOWED.keys()


def test_an_interrupt_as_a_load_begins_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load that is interrupted before it begins is not open afterwards, and keeps no session."""
    with hfmem_widget.watch(quiet=True) as session:
        monitor = running_monitor()
        assert monitor is not None
        usual = Monitor.open_span

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            span = usual(*args, **kwargs)
            signal.raise_signal(signal.SIGINT)
            return span

        class Model:
            def load(self) -> None:
                pytest.fail("it was interrupted before")

        surround(Model, "load", lambda _model: loading.Load(monitor, session, "load Model"))
        monkeypatch.setattr(Monitor, "open_span", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Model().load()

        assert process_state(loading.Loads).calls == []
        assert [span.kind for span in session.open_spans] == ["block"]


@pytest.mark.parametrize(
    ("wanted", "placed", "completed"),
    [
        pytest.param(
            *("abc", ["b", "c", "a", ""], [[], [(40, False)], [(2, True)], [(400, True)]]),
            id="one by one",
        ),
        pytest.param(
            *("abc", ["abc", ""], [[], [(400, False), (40, True), (2, True)]]),
            id="together, as experts' weights, which become one",
        ),
        pytest.param(
            "a", ["a", ""], [[], [(400, True)]], id="without what the model does not take"
        ),
        pytest.param("ax", ["a", "ax", ""], [[], [(400, True)], []], id="twice, and of no file"),
    ],
)
def test_a_file_is_completed_with_the_last_of_its_tensors(
    tmp_path: Path, wanted: str, placed: list[str], completed: list[list[tuple[int, bool]]]
) -> None:
    """A tensor is in the model when the next one goes in, and counts once; a file without any is left out."""
    paths = [str(tmp_path / f"{number}.safetensors") for number in (1, 2)]
    save_file({"a": torch.zeros(100), "b": torch.zeros(10)}, paths[0], metadata={"format": "pt"})
    save_file({"c": torch.zeros(1, dtype=torch.float16)}, paths[1])
    shards = Shards(paths)
    for name in wanted:
        shards.collect(name)

    assert [list(shards.place(names)) for names in placed] == completed
    assert shards.wanted == (2 if "c" in wanted else 1)


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"\xff" * 16, b"\x08" + bytes(7) + b"not json", b"\x02" + bytes(7) + b"[]"),
        *(b"\x0b" + bytes(7) + b'{"a": null}', b"\x07" + bytes(7) + b'{"a":1}'),
    ],
    ids=["missing", "empty", "endless", "no json", "a list", "null", "a number"],
)
def test_a_file_that_cannot_be_read_has_no_tensors(tmp_path: Path, content: bytes | None) -> None:
    """A file with a damaged header has no tensors."""
    path = tmp_path / "broken.safetensors"
    if content is not None:
        path.write_bytes(content)

    assert Shards([str(path)]).sizes == {str(path): {}}

"""Snapshots of torch's allocator in files: opening and display."""

import copy
import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hfmem_widget
from hfmem_widget import OptionError
from hfmem_widget.features.stacks.live_at_peak import replay
from hfmem_widget.session.stacks import Snapshot
from tests.data.torch_snapshots import Allocations, training

Opens = Callable[[Any], Snapshot]


@pytest.fixture
def opens(tmp_path: Path) -> Opens:
    def written(snapshot: Any) -> Snapshot:
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.pickle"
        path.write_bytes(pickle.dumps(snapshot, protocol=4))
        opened: Snapshot = hfmem_widget.open(path)
        return opened

    return written


def text(snapshot: Snapshot) -> str:
    return snapshot._repr_mimebundle_()["text/plain"]


def html(snapshot: Snapshot) -> str:
    return snapshot._repr_mimebundle_()["text/html"]


def test_it_shows_the_places_and_the_layout_of_memory(opens: Opens) -> None:
    """A sentence, the peak by line, module and operator, and the map."""
    memory = training()
    opened = opens(memory.snapshot())
    shown, live = text(opened), replay(memory.snapshot(), 0)

    assert opened.stacks.peaks[0].bytes == live.bytes
    assert sum(row.bytes for row in opened.stacks.rows("module")) == live.bytes
    assert shown.splitlines()[1].startswith("492.0 MiB was allocated on cuda:0 at the peak; the")
    assert shown.index("by source line") < shown.index("by module") < shown.index("reserved in")
    assert "BertSelf \u00b7 modeling_bert.py" in shown
    assert [name in html(opened) for name in ("<svg", "<script")] == [True, False]


def test_segments_alone_show_the_live_memory(opens: Opens) -> None:
    """`torch.cuda.memory_snapshot` returns segments without a history."""
    memory = training()
    opened = opens(memory.snapshot()["segments"])

    assert opened.stacks.peaks[0].bytes == sum(size for size, _ in memory.live.values())
    assert opened.stacks.peaks[0].over_time is None
    assert "has no history of allocations" in text(opened)
    assert "cuda:0" in opened.memory_map.devices


def old(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Return it in the form of torch 2.1."""
    for event in snapshot["device_traces"][0]:
        for key in ("time_us", "compile_context", "user_metadata", "segment_pool_id"):
            del event[key]
    for segment in snapshot["segments"]:
        for key in ("is_expandable", "device", "segment_pool_id"):
            del segment[key]
    return {"segments": snapshot["segments"], "device_traces": snapshot["device_traces"]}


def test_older_snapshots_have_the_same_figures(opens: Opens) -> None:
    """Snapshots of torch 2.1 have fewer fields, and no times."""
    new, before = opens(training().snapshot()), opens(old(training().snapshot()))

    assert before.stacks.peaks[0].sites == new.stacks.peaks[0].sites
    assert before.stacks.peaks[0].over_time != new.stacks.peaks[0].over_time
    assert "events" in html(before)


COMPILED = (
    ("memory_snapshot.cpp", 0, "torch::cuda::(anonymous namespace)::gather_with_cpp()"),
    ("??", 0, "??"),
    ("", 0, "at::native::empty_cuda(c10::ArrayRef<long>)"),
    ("/usr/include/c++/13/bits/invoke.h", 61, "std::__invoke_impl"),
    ("libc10_cuda.so.1", 0, "malloc"),
    ("/usr/local/src/conda/python-3.12/Objects/call.c", 325, "_PyObject_MakeTpCall"),
)


def test_lines_are_those_of_python(opens: Opens) -> None:
    """By default torch also records frames of C++, around those of Python."""
    memory, both = training(), training()
    for event in (snapshot := both.snapshot())["device_traces"][0]:
        between = [{"filename": file, "line": line, "name": name} for file, line, name in COMPILED]
        event["frames"] = [*between, *(event["frames"] or []), *between]

    places = [opens(each).stacks.peaks[0].sites for each in (memory.snapshot(), snapshot)]
    assert places[0] == places[1]


def test_the_thread_of_the_backward_pass_is_known_by_its_engine(opens: Opens) -> None:
    """Autograd's thread has no Python frames."""
    memory = Allocations()
    memory.alloc(1 << 20, COMPILED[0], ("??", 0, "torch::autograd::Engine::thread_main(GraphTask)"))
    opened = opens(memory.snapshot()).stacks

    assert [opened.rows(by)[0].name for by in ("line", "module")] == ["autograd (backward)"] * 2


def test_a_history_that_begins_late_says_so(opens: Opens) -> None:
    """The note has the bytes from before the history; a complete history has no such note."""
    late, whole = training(), Allocations()
    whole.free(whole.alloc(1 << 20, ("a.py", 1, "f")))

    assert "108.0 MiB is older than the history" in text(opens(late.snapshot()))
    assert "older than the history" not in text(opens(whole.snapshot()))


def test_several_devices_follow_each_other(opens: Opens) -> None:
    """The one with the highest peak first; an empty one is left out."""
    snapshot = training(1).snapshot()
    second = training(3).snapshot()
    for segment in second["segments"]:
        segment["device"] = 2
    snapshot["segments"] += second["segments"]
    snapshot["device_traces"] += [[], second["device_traces"][0]]

    assert [peak.device for peak in opens(snapshot).stacks.peaks] == ["cuda:2", "cuda:0"]


def test_files_that_it_names_are_not_opened(opens: Opens, tmp_path: Path) -> None:
    """A line of a local file must not get into a page that may be shared, and a pipe would block."""
    secret, pipe = tmp_path / "secret.py", tmp_path / "pipe.py"
    secret.write_text("password = 'x'\n")
    os.mkfifo(pipe)
    memory = Allocations()
    for path in (secret, pipe, Path("/a/site-packages") / ".." / secret):
        memory.alloc(1 << 20, (str(path), 1, "forward"))

    assert "password" not in html(opens(memory.snapshot()))


def test_a_report_is_one_page(opens: Opens, tmp_path: Path) -> None:
    """The page has no script, and never replaces an existing file."""
    opened = opens(training().snapshot())
    path = opened.report(tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")

    assert "by source line" in page
    assert "<script" not in page
    with pytest.raises(OptionError, match="never overwritten"):
        opened.report(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"segments": {}},
        {"device_traces": []},
        {"segments": [], "device_traces": 3},
        {"segments": [{"address": 0, "total_size": 1, "blocks": 0}]},
        {"segments": [], "device_traces": [[{"action": "alloc", "size": -1, "frames": []}]]},
        {"segments": [], "device_traces": [[{"action": "alloc", "size": 1, "frames": [3]}]]},
        {"segments": [], "device_traces": [[7]]},
        {"segments": [], "device_traces": [[]] * 100_000},
        ["x"],
        3,
        None,
        {},
    ],
)
def test_other_files_are_refused(opens: Opens, wrong: Any) -> None:
    """The error is one sentence with the name of the file."""
    with pytest.raises(OptionError, match=r"\d\.pickle cannot be opened: it is not a snapshot"):
        opens(wrong)


def test_repeated_references_are_refused(opens: Opens) -> None:
    """A small file can list more entries by references than fit into memory."""
    memory = Allocations()
    memory.alloc(1 << 20, ("a.py", 1, "f"))
    segment = memory.snapshot()["segments"][0]
    segment["blocks"] = segment["blocks"] * 3000

    with pytest.raises(OptionError, match="not a snapshot"):
        opens([segment] * 3000)


def test_a_call_in_it_is_refused(tmp_path: Path) -> None:
    """No code in the file is run, and a sentence says why it is not opened."""

    class Runs:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "hostile"),)

    path = tmp_path / "x.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [Runs()]}))
    with pytest.raises(OptionError, match="that could run code"):
        hfmem_widget.open(path)
    assert [one.name for one in tmp_path.iterdir()] == ["x.pickle"]


SMALL = json.loads(json.dumps(training(1, layers=1).snapshot()))
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2) | st.just([])
)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container within a value, with each of its keys."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    inner = [(value[key]) for key in keys if isinstance(value[key], (dict, list))]
    return [(value, key) for key in keys] + [place for each in inner for place in places(each)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_is_wrong_in_it_is_refused_or_shown(opens: Opens, data: st.DataObject) -> None:
    """Any figure, name or list may be something else, or missing."""
    snapshot = copy.deepcopy(SMALL)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(snapshot)))
        if data.draw(st.booleans()):
            container[key] = data.draw(VALUES)
        else:
            container.pop(key)
    with suppress(OptionError):
        html(opens(snapshot))

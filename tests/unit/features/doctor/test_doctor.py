"""What `hfmem_widget.doctor` finds: each line by itself, and nothing personal."""

import json
import platform
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock

import pytest

import hfmem_widget
from hfmem_widget.cli.main import main
from hfmem_widget.cli.output import FINE
from hfmem_widget.features.doctor import api
from tests.data import ROOT
from tests.fakes import accelerators
from tests.fakes.nvml import FakeGpu, FakeNvml
from tests.fakes.torch_cuda import FakeAllocator


def versions(monkeypatch: pytest.MonkeyPatch, **known: str) -> None:
    """Let packages be installed in these versions, and no others."""

    def version(name: str) -> str:
        if name not in known:
            raise metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(api, "version", version)


def test_it_is_short_and_shows_itself_as_text() -> None:
    """A subject and what was found, in at most 20 lines of 80 columns."""
    lines = repr(hfmem_widget.doctor()).splitlines()

    assert len(lines) <= 20
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"versions      Python {platform.python_version()}, hfmem_widget ")


def test_nothing_personal_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no name of a person, a machine, a notebook or a process, no path and no UUID."""
    named = ("JPY_SESSION_NAME", "VSCODE_PID", "KAGGLE_KERNEL_RUN_TYPE")
    for name in ("HOME", "USER", "HOSTNAME", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES", *named):
        monkeypatch.setenv(name, "/home/alice/secret.ipynb")
    monkeypatch.setattr(platform, "release", lambda: "6.8.0-alice")
    monkeypatch.setattr(platform, "node", lambda: "alice-laptop")
    monkeypatch.setattr(api, "version", lambda _: "1.0+/home/alice")
    monkeypatch.setitem(sys.modules, "plotly", SimpleNamespace(__version__="/home/alice"))
    monkeypatch.setattr(
        api, "find_spec", lambda _: SimpleNamespace(origin="/home/alice/torch/x.py")
    )
    monkeypatch.setattr(api, "running_shell", lambda: SimpleNamespace(user_ns={"alice": 1}))
    memory = FakeAllocator(device_type="cuda", initialized=True)
    memory.pools[0].uuid = "alice-uuid"
    monkeypatch.setitem(sys.modules, "torch", accelerators.cuda(memory))
    broken = Mock(side_effect=OSError("libnvidia-ml.so (/home/alice/(secret) was not found"))
    for nvml in (SimpleNamespace(nvmlInit=broken), FakeNvml([FakeGpu(uuid="GPU-alice")])):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        report = hfmem_widget.doctor()
        text = repr(report) + json.dumps(report)

        for word in ("alice", "secret", "home", "uuid", "UUID"):
            assert word not in text
    assert report["host"].startswith("VS Code; ")


def test_a_fault_leaves_all_other_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also without torch; its own line has the kind of fault."""
    monkeypatch.setattr(api, "find_memory", Mock(side_effect=PermissionError("/proc/self")))
    monkeypatch.setattr(api, "find_spec", lambda _: None)
    report = hfmem_widget.doctor()

    assert report["torch"] == "missing"
    assert report["memory"] == "could not be found out (PermissionError)"
    assert [line for line in report.values() if "could not" in line] == [report["memory"]]


def test_a_broken_torch_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its build is read from its files; it is not imported."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libcudart.so.13')")
    (tmp_path / "torch" / "version.py").write_text(
        "from typing import Optional\n__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n"
        "hip: Optional[str] = None\nxpu: Optional[str] = None\n"
    )
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    report = hfmem_widget.doctor()

    assert report["torch"].endswith("built for cuda 13.0")
    assert report["exact peaks"] == "looked for once torch is imported"
    assert "torch" not in sys.modules


def test_it_imports_nothing_heavy() -> None:
    """In a new process, torch, transformers and plotly stay unimported, and the exit code is 0."""
    code = (
        "import sys; from hfmem_widget.cli.main import main; code = main(['doctor']); "
        "print(code, {'torch', 'transformers', 'plotly', 'IPython'} & sys.modules.keys())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )

    assert run.stdout.splitlines()[-1] == "0 set()"
    assert run.stderr == ""


def test_gpus_are_counted_with_their_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come from NVML, which does not initialise CUDA."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([FakeGpu(uuid="a"), FakeGpu(uuid="b")]))

    assert "driver 580.95, 2 \u00d7 NVIDIA Fake, 80.0 GiB" in hfmem_widget.doctor()["NVIDIA"]


def test_a_driver_that_hangs_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report does not wait for it."""
    released = threading.Event()
    monkeypatch.setattr(api, "SECONDS_TO_ANSWER", 0.0)
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=released.wait))
    report = hfmem_widget.doctor()
    released.set()

    assert report["NVIDIA"].endswith("the driver does not answer")


@pytest.mark.parametrize(
    ("kind", "facts"), [("xpu", "1 \u00d7 Intel Max, 80.0 GiB"), ("cuda", "none")]
)
def test_an_allocator_is_described(kind: str, facts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that NVML does not know is found too, and no device is initialised."""
    memory = FakeAllocator(device_type=kind, initialized=facts != "none")
    memory.pools[0].name = "Intel Max"
    monkeypatch.setitem(sys.modules, "torch", getattr(accelerators, kind)(memory))

    assert hfmem_widget.doctor()["exact peaks"] == f"counters of {kind} found; initialised: {facts}"


def test_a_replaced_version_stands_beside_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that was not restarted still has the old one imported."""
    versions(monkeypatch, ipywidgets="8.1.9")
    imported = ModuleType("ipywidgets")
    vars(imported)["__version__"] = "7.7.1"
    monkeypatch.setitem(sys.modules, "ipywidgets", imported)

    assert (
        "ipywidgets 8.1.9 (imported: 7.7.1), anywidget missing" in hfmem_widget.doctor()["Jupyter"]
    )


@pytest.mark.parametrize(
    ("known", "widget", "obstacle"),
    [
        ({"ipykernel": "7.0.1"}, "", "no: ipykernel 7.0 cannot send from a thread"),
        ({"ipykernel": "7.4.0"}, "", "no obstacle found"),
        ({"ipykernel": "7.4.0"}, "static", "no: HFMEM_WIDGET turns it off"),
        ({}, "", "no: a package is missing"),
    ],
)
def test_the_obstacle_to_a_live_chart_is_named(
    known: dict[str, str], widget: str, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, if there are several."""
    versions(monkeypatch, ipywidgets="8.1.9", anywidget="0.11.0", **known)
    monkeypatch.setenv("HFMEM_WIDGET", widget)
    for name in ("ipykernel", "ipywidgets", "anywidget"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    assert hfmem_widget.doctor()["live chart"] == obstacle


def test_the_files_of_pages_are_looked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the folders of Jupyter's data; VS Code and Notebook 6 have a place of their own."""
    file = tmp_path / "nbextensions/anywidget/index.js"
    file.parent.mkdir(parents=True)
    file.touch()
    monkeypatch.setattr(
        "jupyter_core.paths.jupyter_path", lambda *parts: [str(tmp_path.joinpath(*parts))]
    )
    pages = hfmem_widget.doctor()["pages"]

    assert pages.startswith("panel missing, anywidget in JupyterLab missing, anywidget in VS Code")
    assert "Notebook 6 found" in pages


def test_it_prints_what_the_function_returns(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each subject, or one object of JSON."""
    assert main(["doctor"]) == FINE
    text = capsys.readouterr().out
    assert main(["doctor", "--json"]) == FINE
    data = json.loads(capsys.readouterr().out)

    assert text == f"{hfmem_widget.doctor()!r}\n"
    assert data == {"schema": "hfmem.doctor/1", **hfmem_widget.doctor()}

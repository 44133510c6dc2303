"""``hfmem_widget.doctor`` and ``hfmem doctor``: a report of the environment without personal data.

Each line is read separately, so that a fault costs only that line. Texts that may contain a name or a path
are not printed: messages of errors, environment variables, UUIDs, names of files and of the machine.
"""

import os
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from textwrap import TextWrapper

from hfmem_widget.monitor.ticker import done_within
from hfmem_widget.session import Device
from hfmem_widget.sources import loaded_allocator
from hfmem_widget.sources.host import find_memory
from hfmem_widget.sources.malloc import find_glibc_heap
from hfmem_widget.sources.nvml import NvmlSource
from hfmem_widget.sources.procfs import PROC
from hfmem_widget.text import format_bytes, plain
from hfmem_widget.view.front_end import (
    finds_anywidget,
    host_name,
    running_shell,
    serves_labextensions,
)
from hfmem_widget.view.screen import Screen

SECONDS_TO_ANSWER = 5.0  # for a driver, whose calls may hang

_PAGES = {
    "panel": "labextensions/hfmem-widget/package.json",
    "anywidget in JupyterLab": "labextensions/anywidget/package.json",
}
_BUILDS = re.compile(r"^(cuda|hip|xpu)\b[^=]*= *['\"](\d[\w.]*)", re.ASCII | re.MULTILINE)


class Diagnosis(dict[str, str]):
    """The result of `doctor`: texts by subject, shown as lines."""

    def __repr__(self) -> str:
        wrap = TextWrapper(80, subsequent_indent=" " * 14)
        return "\n".join(wrap.fill(f"{subject:14}{text}") for subject, text in self.items())


def doctor() -> Diagnosis:
    """Return versions, host, devices, and which functions work or why not, for bug reports.

    It contains no name of a person, machine or file, imports neither torch nor transformers, and initialises
    no device.
    """
    return Diagnosis({subject: _found_by(look) for subject, look in _LOOKS.items()})


def _found_by(look: Callable[[], str]) -> str:
    try:
        return plain(look(), 400)
    except Exception as error:  # noqa: BLE001  (its text may have a path)
        return f"could not be found out ({type(error).__name__})"


def _versions(*names: str) -> str:
    versions = []
    for name in names:
        try:
            installed = _number(version(name))
        except PackageNotFoundError:
            installed = "missing"
        # Not `getattr` of the module, which makes some packages import more.
        imported = getattr(sys.modules.get(name), "__dict__", {}).get("__version__", installed)
        other = "" if imported == installed else f" (imported: {_number(imported)})"
        versions.append(f"{name} {installed}{other}")
    return ", ".join(versions)


def _number(text: object) -> str:
    return str(text) if re.fullmatch(r"(?a:\d[\w.+!-]{0,39})", str(text)) else "unreadable"


def _torch() -> str:
    spec = find_spec("torch")  # imports nothing: a broken torch is read too
    if spec is None or spec.origin is None:
        return "missing"
    builds = _BUILDS.findall(Path(spec.origin).with_name("version.py").read_text("utf-8"))
    built = " ".join(map(" ".join, builds)) or "the CPU"
    return f"{_versions('torch')}, built for {built}"


def _counters() -> str:
    allocator = loaded_allocator()
    if not allocator.supported():
        return (
            "no counters found" if "torch" in sys.modules else "looked for once torch is imported"
        )
    used = _listed(allocator.device(at) for at in allocator.devices())
    return f"counters of {allocator.device_type} found; initialised: {used}"


def _listed(devices: Iterable[Device]) -> str:
    counts = Counter(f"{device.name}, {format_bytes(device.total)}" for device in devices)
    return "; ".join(f"{count} \u00d7 {name}" for name, count in counts.items()) or "none"


def _nvidia() -> str:
    answers: list[str] = []
    done_within(SECONDS_TO_ANSWER, lambda: answers.append(_found_by(_devices_of_nvml)))
    return answers[0] if answers else "the driver does not answer"


def _devices_of_nvml() -> str:
    source = NvmlSource(None, os.environ)
    try:
        source.read(0.0)
        if source.notes and not source.devices:
            return re.sub(r" *\(.*\)", "", source.notes[0])  # an error's own text
        return f"driver {_number(source.driver())}, {_listed(source.devices)}"
    finally:
        source.close()


def _system() -> str:
    number = re.findall(r"^[\d.]+", platform.release())  # what follows may be a name
    return " ".join((platform.system(), *number, platform.machine(), *platform.libc_ver()))


def _memory() -> str:
    memory = find_memory()
    limit = ", the limit of a control group" if getattr(memory, "is_limited", False) else ""
    heap = "readable" if find_glibc_heap() else "not readable (needs glibc 2.33 and its malloc)"
    pressure = "there" if (PROC / "pressure" / "memory").exists() else "not there"
    return f"{format_bytes(memory.machine_total)}{limit}; heap {heap}; /proc/pressure {pressure}"


def _host() -> str:
    if running_shell() is None:
        return "no notebook; in a cell, hfmem_widget.doctor() looks in its kernel"
    way = "the server" if serves_labextensions() else "the kernel"
    return f"{host_name() or 'not named, as in JupyterLab'}; its page loads the chart from {way}"


def _live_chart() -> str:
    shell, needed = running_shell(), _versions("ipykernel", "ipywidgets", "anywidget")
    obstacles = {
        "a package is missing": "missing" in needed,
        "ipykernel 7.0 cannot send from a thread": "ipykernel 7.0." in needed,  # ipykernel#1450
        "HFMEM_WIDGET turns it off": os.environ.get("HFMEM_WIDGET") in {"static", "off"},
        "what this cell shows cannot be replaced": shell is not None and not Screen(shell).live,
    }
    why = next((why for why, holds in obstacles.items() if holds), "")
    return f"no: {why}" if why else "no obstacle found"


def _pages() -> str:
    from jupyter_core.paths import jupyter_path

    def state(file: str) -> str:
        is_there = any(Path(folder, file).is_file() for folder in jupyter_path())
        return "found" if is_there else "missing"

    served = ", ".join(f"{what} {state(file)}" for what, file in _PAGES.items())
    elsewhere = "found" if finds_anywidget() else "missing"
    served += f", anywidget in VS Code and Notebook 6 {elsewhere}"
    return f"{served} (in the Jupyter folders of this Python)"


_LOOKS: dict[str, Callable[[], str]] = {
    "versions": lambda: f"Python {platform.python_version()}, {_versions('hfmem_widget')}",
    "torch": _torch,
    "libraries": lambda: _versions("transformers", "accelerate", "plotly", "psutil"),
    "Jupyter": lambda: _versions("IPython", "ipykernel", "ipywidgets", "anywidget", "jupyterlab"),
    "system": _system,
    "memory": _memory,
    "NVIDIA": lambda: f"{_versions('nvidia-ml-py')}: {_nvidia()}",
    "exact peaks": _counters,
    "host": _host,
    "live chart": _live_chart,
    "pages": _pages,
}

"""What changes in a process is one object, with which a forked child does not go on."""

import os
import threading
from dataclasses import dataclass, field

import pytest

import hfmem_widget
from hfmem_widget.drivers.training.loop import in_group
from hfmem_widget.monitor import process
from hfmem_widget.monitor.process import Installed, process_state, threads_in_group
from hfmem_widget.monitor.shared import shared_monitor


@dataclass
class Calls:
    """What runs now."""

    running: list[str] = field(default_factory=list)


@dataclass
class Hooks(Installed):
    """What is in another library."""

    names: list[str] = field(default_factory=list)


def test_a_part_is_made_once() -> None:
    """Every caller gets the same object, until the process has another state."""
    calls = process_state(Calls)
    calls.running.append("one")
    assert process_state(Calls) is calls
    process.replace(process.this.child())

    assert process_state(Calls).running == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_keeps_only_installed_parts() -> None:
    """It has none of its parent's watches, threads and groups of steps."""
    monitor = shared_monitor()
    with hfmem_widget.watch(quiet=True):
        process_state(Calls).running.append("a call")
        process_state(Hooks).names.append("a hook")
        threads_in_group[threading.get_ident()] = [1]
        child = os.fork()
        if not child:
            kept = process_state(Hooks).names == ["a hook"]
            is_new = process.this.monitor is None and process_state(Calls).running == []
            os._exit(0 if kept and is_new and not in_group() else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert status == 0
    assert process.this.monitor is monitor
    assert process_state(Calls).running == ["a call"]

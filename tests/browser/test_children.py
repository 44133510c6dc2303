"""While child processes use the GPUs, the chart and the panel lead with the devices that they fill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.lab import Lab
from tests.fakes.children import LAUNCH
from tests.fakes.nvml_stub import NoCompilerError, build_stub

# The stand-in for the driver's library is loaded by hand: the server is that of all tests.
ON_FOUR_GPUS = """
import ctypes, os, pynvml
os.environ |= {{"NVML_STUB_DEVICES": "4", "NVML_STUB_PROCESSES": {processes!r}}}
pynvml.nvmlLib = ctypes.CDLL({library!r})
%load_ext hfmem_widget
"""


def test_the_head_and_the_chart_are_of_the_devices_in_use(lab: Lab, tmp_path: Path) -> None:
    """The figure is of a device, not of this process' memory, and a sentence names the children."""
    try:
        library = build_stub(tmp_path)
    except NoCompilerError as error:
        pytest.skip(str(error))
    processes = tmp_path / "processes"
    processes.mkdir()
    setup = ON_FOUR_GPUS.format(processes=str(processes), library=str(library)) + LAUNCH
    seen = tmp_path / "seen"
    cell = f'%%memwatch --label "four ranks"\nlaunch(range(4), {str(seen)!r}, steps=40)'
    lab.open(setup, cell)
    lab.run_cell(0)
    lab.run_cell(1, wait=False)
    # The first cell is long, and a chart that is out of sight is not drawn.
    lab.cell(1).locator(".hfmem-root").first.scroll_into_view_if_needed()
    head = lab.cell(1).locator(".hfmem-head").first
    head.get_by_text("by 4 child processes").wait_for()
    notice = head.locator(".hfmem-notice")
    assert notice.evaluate("it => it.scrollHeight <= it.clientHeight + 1")
    assert "device in use" in (head.locator(".hfmem-current").get_attribute("title") or "")
    lab.theme("dark")
    lab.screenshot("children-live-dark")
    lab.theme("light")
    lab.screenshot("children-live-light")
    seen.touch()
    lab.wait_until_idle()
    lab.wait_for_text(1, "by 4 child processes")
    lab.screenshot("children-card-light", lab.cell(1))
    lab.theme("dark")
    lab.screenshot("children-card-dark", lab.cell(1))
    lab.theme("light")

from __future__ import annotations

from tests.browser.lab import Lab


def test_a_cell_runs_without_console_errors(lab: Lab) -> None:
    """A notebook opened in JupyterLab runs, and the page logs no error."""
    lab.open("1 + 1", "print('done')")
    lab.run_all()
    assert lab.outputs(0)[0]["data"]["text/plain"] == "2"
    lab.wait_for_text(1, "done")
    assert lab.errors == []


def test_a_reloaded_page_shows_the_saved_notebook(lab: Lab) -> None:
    """After save and reload the outputs are back, and the same kernel goes on."""
    lab.open("value = 41", "value + 1")
    lab.run_all()
    assert lab.save().cells[1].outputs[0].data["text/plain"] == "42"
    lab.reload()
    lab.wait_for_text(1, "42")
    lab.run_cell(1)
    assert lab.outputs(1)[0]["data"]["text/plain"] == "42"
    assert lab.errors == []


def test_themes_switch_without_console_errors(lab: Lab) -> None:
    """JupyterLab's own themes can be switched back and forth, and the page logs no error."""
    lab.open("1 + 1")
    lab.theme("dark")
    assert lab.page.locator("body").get_attribute("data-jp-theme-light") == "false"
    lab.theme("light")
    assert lab.page.locator("body").get_attribute("data-jp-theme-light") == "true"
    assert lab.errors == []


def test_a_restarted_kernel_has_forgotten(lab: Lab) -> None:
    """After a restart names are gone, and the page still drives the kernel."""
    lab.open("value = 1", "value")
    lab.run_all()
    lab.restart_kernel()
    lab.run_cell(1)
    assert lab.outputs(1)[0]["ename"] == "NameError"
    assert lab.errors == []

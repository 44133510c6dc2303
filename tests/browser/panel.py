"""JupyterLab's memory panel as a person sees it."""

from playwright.sync_api import Locator

from tests.browser.lab import Lab

DRAWN = "#hfmem-panel [data-hfmem-draws]"


class Panel:
    """The panel at the right of a page."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self.element: Locator = lab.page.locator("#hfmem-panel")
        self.status: Locator = lab.page.locator("#hfmem-status")

    @property
    def shown(self) -> bool:
        return self.element.is_visible()

    @property
    def width(self) -> float:
        """How wide it is, in pixels."""
        box = self.element.bounding_box()
        return box["width"] if box else 0.0

    @property
    def path(self) -> str:
        """What stands for the open spans."""
        return self.element.locator(".hfmem-path").get_attribute("title") or ""

    @property
    def cells(self) -> list[str]:
        """The labels of the last cells, newest first."""
        return self.element.locator(".hfmem-cell-label:visible").all_inner_texts()

    @property
    def rows(self) -> int:
        return self._number("hfmemRows")

    @property
    def draws(self) -> int:
        return self._number("hfmemDraws")

    @property
    def seq(self) -> int:
        """The number of the newest message that its chart shows."""
        return self._number("hfmemSeq")

    def wait_for_draws(self, count: int = 1) -> None:
        self._wait_for("hfmemDraws", count)

    def wait_for_rows(self, count: int) -> None:
        self._wait_for("hfmemRows", count)

    def wait_for_seq(self, seq: int) -> None:
        self._wait_for("hfmemSeq", seq)

    def wait_for_path(self, text: str) -> None:
        self._lab.wait_for(
            "text => document.querySelector('#hfmem-panel .hfmem-path')?.title.includes(text)",
            arg=text,
        )

    def wait_for_cell(self, label: str) -> None:
        self.element.locator(".hfmem-cell-label").filter(has_text=label).wait_for()

    def close(self) -> None:
        """Fold the side bar away, as a click on the panel's icon does."""
        self._lab.page.locator(".jp-SideBar.jp-mod-right [data-id='hfmem-panel']").click()
        self.element.wait_for(state="hidden")

    def _wait_for(self, name: str, least: int) -> None:
        self._lab.wait_for(
            "([drawn, name, least]) => Number(document.querySelector(drawn)?.dataset[name]) >= least",
            arg=[DRAWN, name, least],
        )

    def _number(self, name: str) -> int:
        script = "([drawn, name]) => Number(document.querySelector(drawn)?.dataset[name] ?? 0)"
        return int(self._lab.page.evaluate(script, [DRAWN, name]))


def wait_for_panel(lab: Lab) -> Panel:
    panel = Panel(lab)
    panel.element.wait_for()
    panel.wait_for_draws(2)
    return panel

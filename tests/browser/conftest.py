"""One server and one browser for all tests, one notebook for each, and one page wherever that will do."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.browser.jupyter import PYTHON, TRAINING, JupyterLab, find_chromium
from tests.browser.kernels import FOR_TRAINING, FOR_WATCHES, Kernels
from tests.browser.lab import WINDOW, Lab

# Root cannot use Chromium's sandbox; the rest keeps it from talking to anyone else.
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def python_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    with Kernels(tmp_path_factory.mktemp("kernels"), PYTHON, *FOR_WATCHES) as kernels:
        yield kernels


@pytest.fixture(scope="session")
def training_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernels]:
    """Return those that begin with the libraries that train, once a test has asked for `training`."""
    modules = (*FOR_WATCHES, *FOR_TRAINING)
    with Kernels(tmp_path_factory.mktemp("kernels"), TRAINING, *modules) as kernels:
        yield kernels


@pytest.fixture(scope="session")
def jupyter_server(
    tmp_path_factory: pytest.TempPathFactory, python_kernels: Kernels, training_kernels: Kernels
) -> Iterator[JupyterLab]:
    home = tmp_path_factory.mktemp("jupyter")
    commands = {one.name: one.command for one in (python_kernels, training_kernels)}
    python_kernels.start()
    with JupyterLab(home, kernels=commands) as server:
        yield server


@pytest.fixture(scope="session")
def training(training_kernels: Kernels) -> str:
    """Return what a notebook calls a kernel that begins with the libraries that train."""
    training_kernels.start()
    return training_kernels.name


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    """Return one context for all pages: what the first one fetched is in the others' cache.

    It has a profile on disk, as a person's has: in it Chromium keeps compiled scripts, too.
    """
    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            tmp_path_factory.mktemp("profile"),
            executable_path=find_chromium(),
            args=FLAGS,
            viewport=WINDOW,
        )
        yield context
        context.close()


@pytest.fixture(scope="session")
def dense_browser(browser: BrowserContext) -> BrowserContext:
    """Return one for pages of which each pixel is four of the screen's, as on one at 200 %."""
    assert browser.browser is not None
    return browser.browser.new_context(device_scale_factor=2)


@pytest.fixture(scope="session")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where screenshots go: the folder that ``HFMEM_SHOTS`` names, else one that is not there."""
    wanted = os.environ.get("HFMEM_SHOTS")
    if not wanted:
        return tmp_path_factory.getbasetemp() / "nobody-wants-shots"
    folder = Path(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def used_page(browser: BrowserContext) -> Page:
    """Return the page of all tests that need none of their own: to load one takes 4 seconds."""
    return browser.new_page()


@pytest.fixture
def lab(
    request: pytest.FixtureRequest,
    jupyter_server: JupyterLab,
    browser: BrowserContext,
    used_page: Page,
    shots: Path,
) -> Iterator[Lab]:
    """Return a page on which no notebook is open; one of the test's own where it is marked ``new_page``.

    A test that leaves an error on it fails.
    """
    is_new = request.node.get_closest_marker("new_page") is not None
    page = browser.new_page() if is_new else used_page
    lab = Lab(page, jupyter_server, shots)
    lab.resize(**WINDOW)
    yield lab
    lab.leave()
    if is_new:
        page.close()
    jupyter_server.reset()
    assert lab.errors == []

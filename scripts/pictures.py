"""Makes the pictures in docs/images from a real JupyterLab.

    pip install pillow                                      # only for the moving picture
    python scripts/pictures.py                              # live.webp and panel.png, on this machine
    python scripts/pictures.py quickstart                   # quickstart.webp, of all cells of notebook 01
    python scripts/pictures.py report                       # report.png: a report of a scripted run
    python scripts/pictures.py ranks                        # ranks.png: that of 1,024 simulated ranks
    python scripts/pictures.py done RUN.ipynb 5             # done.png: cell 5 of an executed notebook
    python scripts/pictures.py leak RUN.ipynb 5 --card      # leak.png: the first card of cell 5 alone

RUN.ipynb is a notebook that was executed on a GPU. It is shown without a kernel, as a reader would open it.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import hfmem_widget  # noqa: E402
from hfmem_widget.text import GIB  # noqa: E402
from tests.browser.conftest import FLAGS  # noqa: E402
from tests.browser.jupyter import JupyterLab, find_chromium  # noqa: E402
from tests.browser.lab import Lab  # noqa: E402
from tests.fakes.ranks import Script, SimulatedRun  # noqa: E402
from tests.scenes import scripted_run  # noqa: E402

IMAGES = ROOT / "docs" / "images"
NOTEBOOK = ROOT / "notebooks" / "02-trainer.ipynb"
EXTENSION, MODEL, TRAINING = 1, 3, 5
QUICKSTART = ROOT / "notebooks" / "01-quickstart.ipynb"

# A larger model and fewer steps, so that activations and single steps are visible.
CHANGES = {
    '"hidden_size": 192, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 768': (
        '"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024'
    ),
    "(128, 8, 80)": "(256, 8, 32)",
    "logging_steps=8": "logging_steps=8,\n        disable_tqdm=True",
}
WAIT = 0.3
"""Seconds between two frames, in addition to the time of a screenshot."""

MOVING = {"width": 960, "milliseconds": 350, "last": 4000, "quality": 60}

BUSY = "() => window.running === true || kernel().status !== 'idle'"
TO_THE_TOP = """index => {
    const page = document.querySelector('.jp-WindowedPanel-outer');
    const cell = document.querySelector(`.jp-Notebook .jp-Cell[data-windowed-list-index='${index}']`);
    page.scrollTop += cell.getBoundingClientRect().top - page.getBoundingClientRect().top - 8;
}"""


@contextmanager
def opened(width: int, height: int, shots: Path, scale: float = 1) -> Iterator[Lab]:
    """Open a page of JupyterLab, with so many pixels of the picture to a pixel of the page."""
    with (
        tempfile.TemporaryDirectory() as home,
        JupyterLab(Path(home)) as server,
        sync_playwright() as playwright,
    ):
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        size = {"width": width, "height": height}
        context = chromium.new_context(viewport=size, device_scale_factor=scale)  # type: ignore[arg-type]
        yield Lab(context.new_page(), server, shots)
        chromium.close()


def film(shots: Path) -> list[Path]:
    """Train in a watched cell, and return pictures of the page; the last one shows the finished cell."""
    text = json.dumps(json.loads(NOTEBOOK.read_text(encoding="utf-8")), ensure_ascii=False)
    for old, new in CHANGES.items():
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    with opened(1280, 900, shots) as lab:
        (lab.server.folder / "trainer.ipynb").write_text(text, encoding="utf-8")
        lab.open_path("trainer.ipynb")
        lab.command("application:toggle-left-area")
        lab.run_cell(EXTENSION, timeout=120)
        lab.run_cell(MODEL, timeout=240)
        lab.run_cell(TRAINING, wait=False)
        # A notebook that was left behind has a hint of its own, out of sight.
        lab.page.locator("#hfmem-panel .hfmem-panel-dismiss:visible").click(timeout=20_000)
        frames: list[Path] = []
        while lab.page.evaluate(BUSY):
            lab.page.evaluate(TO_THE_TOP, TRAINING)
            frames.append(lab.screenshot(f"frame-{len(frames):03d}"))
            time.sleep(WAIT)
        lab.wait_for_text(TRAINING, "left behind")
        time.sleep(2)
        lab.page.evaluate(TO_THE_TOP, TRAINING)
        return [*frames, lab.screenshot(f"frame-{len(frames):03d}")]


def film_quickstart(shots: Path) -> list[Path]:
    """Run all cells of the quickstart one after the other, and return pictures of the page.

    What a cell ended with stays in sight for a moment; the last picture shows the training's card.
    """
    cells = json.loads(QUICKSTART.read_text(encoding="utf-8"))["cells"]
    frames: list[Path] = []
    with opened(1280, 800, shots) as lab:
        shutil.copy(QUICKSTART, lab.server.folder)
        lab.open_path(QUICKSTART.name)
        lab.command("application:toggle-left-area")
        for at, cell in enumerate(cells):
            if cell["cell_type"] != "code":
                continue
            lab.run_cell(at, wait=False)
            while lab.page.evaluate(BUSY):
                lab.page.evaluate(TO_THE_TOP, at)
                frames.append(lab.screenshot(f"frame-{len(frames):03d}"))
                time.sleep(WAIT)
            if at == TRAINING:
                lab.wait_for_text(at, "stay")
            time.sleep(2)
            lab.page.evaluate(TO_THE_TOP, at)
            frames += [lab.screenshot(f"frame-{len(frames):03d}")] * (12 if at == TRAINING else 4)
        lab.page.evaluate(TO_THE_TOP, TRAINING)
        time.sleep(1)
        return [*frames, lab.screenshot(f"frame-{len(frames):03d}")]


def move(frames: list[Path], path: Path, every: int = 2) -> None:
    """Write a moving picture of every second frame, or fewer."""
    from PIL import Image

    width = MOVING["width"]
    chosen = [*frames[every:-1:every], frames[-1]]
    pictures = []
    for one in chosen:
        with Image.open(one) as picture:
            height = round(picture.height * width / picture.width)
            pictures.append(
                picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
            )
    pictures[0].save(
        path,
        save_all=True,
        append_images=pictures[1:],
        duration=[MOVING["milliseconds"]] * (len(pictures) - 1) + [MOVING["last"]],
        loop=0,
        quality=MOVING["quality"],
        method=6,
        minimize_size=True,
    )


def still(name: str, notebook: Path, cell: int, shots: Path, *, only_card: bool) -> Path:
    """Return a picture of a cell as a notebook has it, or of its first card alone."""
    with opened(1280, 2400, shots, scale=1.5) as lab:
        copy = shutil.copy(notebook, lab.server.folder / notebook.name)
        lab.server.run(
            "trust", str(copy)
        )  # JupyterLab takes drawings out of what it does not trust
        lab.open_path(notebook.name, kernel=False)
        shown: Locator = lab.cell(cell)
        shown.scroll_into_view_if_needed()
        shown.locator(".jp-RenderedHTMLCommon > div").first.wait_for()
        time.sleep(2)
        if only_card:
            shown = shown.locator(".jp-RenderedHTMLCommon > div").first
        return lab.screenshot(name, shown)


def report(shots: Path) -> Path:
    """Return a picture of the top of a report."""
    path = scripted_run("leak").report(shots / "report.html")
    with page_of(path, height=1290) as page:
        page.screenshot(path=shots / "report.png")
    return shots / "report.png"


def ranks(shots: Path) -> Path:
    """Return a picture of a run of 1,024 ranks, of which one is an outlier and a node has fallen silent."""
    silent = dict.fromkeys(range(640, 648), 150.0)
    script = Script(
        world=1024,
        step_seconds=10.0,
        interval=1.0,
        pace=4.0,
        activations=34 * GIB,
        evaluate_every=6,
        heavier={417: 1.26},
        killed=silent,
    )
    run = SimulatedRun(script, began=time.time() - 300)
    run.write(shots / "run", 240.0)
    opened = hfmem_widget.open(shots / "run")
    path = opened.report(shots / "ranks.html")
    opened.close()
    with page_of(path, height=1800) as page:
        page.locator("#hfmem-chart").screenshot(path=shots / "ranks.png")
    return shots / "ranks.png"


@contextmanager
def page_of(path: Path, height: int) -> Iterator[Page]:
    """Show a report in a browser."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        page = chromium.new_page(viewport={"width": 1060, "height": height})
        page.goto(path.as_uri())
        page.locator("#hfmem-chart .main-svg").first.wait_for()
        time.sleep(1)
        yield page
        chromium.close()


def main() -> None:
    """Make the requested pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "name",
        nargs="?",
        default="live",
        help="live, quickstart, report or ranks; of a notebook, the name of the picture",
    )
    parser.add_argument("notebook", nargs="?", type=Path)
    parser.add_argument("cell", nargs="?", type=int)
    parser.add_argument("--card", action="store_true", help="the cell's first card alone")
    wanted = parser.parse_args()
    # On a busy machine two threads of torch wait for each other at every operator.
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        shots = Path(folder)
        if wanted.name == "live":
            frames = film(shots)
            move(frames, IMAGES / "live.webp")
            shutil.copy(frames[2 * len(frames) // 3], IMAGES / "panel.png")
        elif wanted.name == "quickstart":
            move(film_quickstart(shots), IMAGES / "quickstart.webp", every=4)
        elif wanted.name in {"report", "ranks"}:
            shutil.copy({"report": report, "ranks": ranks}[wanted.name](shots), IMAGES)
        else:
            picture = still(wanted.name, wanted.notebook, wanted.cell, shots, only_card=wanted.card)
            shutil.copy(picture, IMAGES)
    print(*(f"{path} {path.stat().st_size:,}" for path in sorted(IMAGES.iterdir())), sep="\n")


if __name__ == "__main__":
    main()

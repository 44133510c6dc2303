"""The documentation as pages, which `make docs` writes to site/. They are made, and read, without a network.

Sources are the Markdown files and notebooks where they stand, so that links lead to the same places
here and on a code host. The navigation is the list of docs/README.md; the front page is the README.
The pages about how it works are below one entry.
"""

import re
import shutil
import sys
from pathlib import Path

from IPython.lib.lexers import IPython3Lexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import hfmem_widget  # noqa: E402

project = "hfmem_widget"
version = release = hfmem_widget.__version__
copyright = "the authors of hfmem_widget, Apache-2.0"  # noqa: A001

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "numpydoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**", "notebooks/*.ipynb"]

myst_heading_anchors = 4
# No `$` and `:::`: what a code host shows is what the page shows.
myst_enable_extensions: list[str] = []
nb_execution_mode = "off"
# Plotly's own format stands beside the same chart as a picture, which is what a page can show.
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_typehints = "none"  # numpydoc's tables name the types
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
default_role = "code"

html_theme = "furo"
html_title = f"hfmem_widget {version}"
html_static_path = ["static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sphinx = False

GROUP = re.compile(r"^\*\*(.+)\*\*\n((?:- .*\n(?:  .*\n)*)+)", re.MULTILINE)
PAGE = re.compile(r"\[([^\]]+)\]\((\w[\w./-]+\.md)\)")
BELOW_ONE = "How it works"
MORE = {
    "Notebooks": sorted(
        path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/*.ipynb")
    ),
    "Reference": ["docs/site/api.rst"],
    "Project": ["docs/README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"],
}
DEMO = """
<iframe class="demo" src="demo/index.html" title="The live chart, in this page" loading="lazy"></iframe>

*The live chart, on data that is made up in this page.*
"""


def pages() -> dict[str, list[str]]:
    """Return the lists of pages as they stand in docs/README.md."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    return {
        caption: [
            f"{name[0].upper()}{name[1:]} </docs/{path}>" for name, path in PAGE.findall(found)
        ]
        for caption, found in GROUP.findall(text)
    }


def toctree(entries: list[str], *options: str) -> str:
    """Return a directive that puts these pages into the side bar."""
    lines = ["```{toctree}", ":hidden:", *options, "", *entries, "```"]
    return "\n" + "\n".join(lines) + "\n"


def navigation() -> str:
    """Return the lists of pages, and what is beside them."""
    groups = pages()
    entry, *_ = groups.pop(BELOW_ONE)
    groups |= MORE | {"Project": [entry, *MORE["Project"]]}
    return "".join(toctree(entries, f":caption: {caption}") for caption, entries in groups.items())


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001
    """Put the demo below the first picture of the README, and the navigation at its end."""
    if name == root_doc:
        above, heading, below = source[0].partition("\n## What you get")
        source[0] = above + DEMO + heading + below + navigation()
    elif name == "docs/how-it-works":
        _, *below_it = pages()[BELOW_ONE]
        source[0] += toctree(below_it)


def add_demo(app: Sphinx, exception: Exception | None) -> None:
    """Place the chart's demo beside the pages, and the front page where a server looks for it."""
    site = Path(app.outdir)
    if exception is None:
        shutil.copytree(ROOT / "js" / "demo" / "dist", site / "demo", dirs_exist_ok=True)
        shutil.copyfile(site / f"{root_doc}.html", site / "index.html")


def add_markdown(app: Sphinx, exception: Exception | None) -> None:
    """Place each page's Markdown beside it, and a list of all where agents look for it, see llmstxt.org."""
    if exception is not None:
        return
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        twin = Path(app.outdir, path.relative_to(ROOT))
        twin.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, twin)
    about = next(line for line in lines_of("README.md") if line.startswith("**")).strip("*")
    found = GROUP.findall("\n".join(lines_of("docs/README.md")) + "\n")
    groups = [f"## {caption}\n\n{entries.replace('](', '](docs/')}" for caption, entries in found]
    index = "\n".join([f"# {project}\n\n> {about}\n", *groups])
    Path(app.outdir, "llms.txt").write_text(index.replace("docs/../", ""), encoding="utf-8")


def lines_of(page: str) -> list[str]:
    """Return the lines of a page's source."""
    return (ROOT / page).read_text(encoding="utf-8").splitlines()


def setup(app: Sphinx) -> None:
    """Connect the above; magics are part of Python here."""
    app.add_lexer("python", IPython3Lexer)
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_demo)
    app.connect("build-finished", add_markdown)

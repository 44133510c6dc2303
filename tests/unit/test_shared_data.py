"""What an environment is given of the wheel's shared data."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import install_shared_data

PROJECT = """
[tool.hatch.build.targets.wheel.shared-data]
"built/chart.js" = "share/ours/static/chart.js"
"built/extension" = "share/ours"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


def test_files_go_into_the_folder_whatever_the_order(project: Path, tmp_path: Path) -> None:
    """A folder does not replace what is put into it."""
    prefix = tmp_path / "environment"
    install_shared_data.install_shared_data(prefix)

    assert project.is_dir()
    assert files(prefix) == {
        "share/ours/package.json",
        "share/ours/static/chart.js",
        "share/ours/static/remoteEntry.1.js",
    }


def test_nothing_of_yesterday_is_left(project: Path, tmp_path: Path) -> None:
    """A module that has another name by now goes, and nobody else's files do."""
    prefix = tmp_path / "environment"
    install_shared_data.install_shared_data(prefix)
    neighbour = prefix / "share" / "theirs"
    neighbour.write_text("stays")
    static = project / "built" / "extension" / "static"
    (static / "remoteEntry.1.js").rename(static / "remoteEntry.2.js")
    install_shared_data.install_shared_data(prefix)

    assert files(prefix) == {
        "share/theirs",
        "share/ours/package.json",
        "share/ours/static/chart.js",
        "share/ours/static/remoteEntry.2.js",
    }

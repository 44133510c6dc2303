"""Copies the wheel's shared data from this checkout into an environment.

An editable install does that once; after the front end was built anew its copy is that of yesterday.
Copied, not linked: tornado from 6.5.9 on refuses to serve what a link leads out of the folder to.
"""

import shutil
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def install_shared_data(prefix: Path) -> None:
    """Copy the wheel's shared data to its place under an environment's folder, and what was there away."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    # Folders come first: what they replace holds the files that go into them.
    for source, destination in sorted(shared.items(), key=lambda pair: (ROOT / pair[0]).is_file()):
        target = prefix / destination
        if (ROOT / source).is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(ROOT / source, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / source, target)


if __name__ == "__main__":
    install_shared_data(Path(sys.argv[1] if len(sys.argv) > 1 else sys.prefix))

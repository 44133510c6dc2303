"""Builds what a release consists of into dist/, and tries it where nothing of ours is.

    python scripts/release_check.py torch==2.13.0     # what `make release-check` calls

1. The sdist, and the wheel from it. Built again, the wheel has the same bytes.
2. `twine check` on both.
3. For each Python from 3.11 that is found: the wheel in an environment of its own, without torch,
   with no Node in reach. It is imported, its magics are loaded, a block is watched.
   The first one gives the list of parts (SBOM), beside that of the front end.
4. For the Python that runs this: torch beside it, and the quickstart notebook from top to bottom.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
WORK = ROOT / ".cache" / "release"
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
QUICKSTART = ROOT / "notebooks" / "01-quickstart.ipynb"

SMOKE = """
import sys
from importlib.metadata import version

import hfmem_widget
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "hfmem_widget")
assert "memwatch" in shell.magics_manager.magics["cell"]
with hfmem_widget.watch("smoke", quiet=True) as session:
    kept = bytearray(64 << 20)
assert session.peak("cpu/allocated") >= 64 << 20
assert hfmem_widget.__version__ == version("hfmem-widget")
assert "torch" not in sys.modules
print(f"hfmem_widget {hfmem_widget.__version__}: {session.peak('cpu/allocated') / 2**20:.0f} MiB at the peak")
"""


def call(*command: str | Path, **settings: str) -> str:
    """Run a command, which must succeed, and return what it printed."""
    done = subprocess.run(  # noqa: S603  (our own commands)
        command,
        cwd=WORK,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def build(folder: Path, epoch: str) -> tuple[Path, Path]:
    """Build sdist and wheel of this checkout, as at a time in seconds since 1970."""
    call(sys.executable, "-m", "build", "--outdir", folder, ROOT, SOURCE_DATE_EPOCH=epoch)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def pythons() -> Iterator[Path]:
    """Return an interpreter of each version that is found, those of pyenv among them."""
    path = os.environ["PATH"]
    if shutil.which("pyenv"):
        versions = Path(call("pyenv", "root").strip(), "versions")
        path = os.pathsep.join([*map(str, sorted(versions.glob("*/bin"))), path])
    for name in PYTHONS:
        script = ROOT / "scripts" / "find-python.sh"
        done = subprocess.run(  # noqa: S603
            [script, name],
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            yield Path(done.stdout.strip())
        else:
            print(f"-- {name}: not found, not tried")


def install(python: Path, wheel: Path) -> Path:
    """Install the wheel into a fresh environment, and return the folder of its programs."""
    place = WORK / python.name
    call(python, "-m", "venv", place)
    call(place / "bin" / "python", "-m", "pip", "install", "-q", "--upgrade", "pip")
    call(place / "bin" / "python", "-m", "pip", "install", "-q", wheel)
    return place / "bin"


def without_places(text: str) -> str:
    """Return a list of parts without where this machine had them from."""
    content = json.loads(text)
    for part in (content["metadata"].get("component", {}), *content["components"]):
        part["externalReferences"] = [
            one for one in part.get("externalReferences", []) if one["type"] != "distribution"
        ]
    return json.dumps(content, indent=2) + "\n"


def list_parts(programs: Path) -> None:
    """Write what an installation consists of, and what is bundled in the front end, in CycloneDX's format."""
    tool = Path(sys.executable).with_name("cyclonedx-py")
    python = call(tool, "environment", "--pyproject", ROOT / "pyproject.toml", programs / "python")
    npm = call(
        "npm",
        "sbom",
        "--prefix",
        ROOT / "js",
        "--sbom-format=cyclonedx",
        "--omit=dev",
        "--package-lock-only",
    )
    (DIST / "sbom-python.cdx.json").write_text(without_places(python), encoding="utf-8")
    (DIST / "sbom-front-end.cdx.json").write_text(without_places(npm), encoding="utf-8")


def run_quickstart(programs: Path, torch: str) -> None:
    """Run the notebook with what a user installs, and no other program on the PATH."""
    # torch alone and first: see the Makefile.
    call(programs / "python", "-m", "pip", "install", "-q", torch)
    call(
        programs / "python",
        "-m",
        "pip",
        "install",
        "-q",
        "accelerate",
        "transformers",
        "pandas",
        "ipykernel",
        "nbclient",
    )
    copy = shutil.copy(QUICKSTART, WORK)
    call(programs / "jupyter", "execute", "--inplace", copy, PATH=str(programs))
    text = Path(copy).read_text(encoding="utf-8")
    if 'memwatch \\"fine-tune\\"' not in text:
        sys.exit("The quickstart ran, but its card is not there.")


def main(torch: str) -> None:
    """Do all of it; the first thing that fails ends it."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    epoch = call("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()
    sdist, wheel = build(DIST, epoch)
    again = build(WORK / "again", epoch)[1]
    if wheel.read_bytes() != again.read_bytes():
        sys.exit(f"{wheel.name} was built twice, and differs.")
    print(f"ok {sdist.name}, {wheel.name}: the same bytes when built again")
    call(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel)
    print("ok twine check")

    listed = False
    for python in pythons():
        programs = install(python, wheel)
        said = call(programs / "python", "-c", SMOKE, PATH=str(programs)).strip()
        print(f"ok {python.name} without torch: {said}")
        if not listed:
            list_parts(programs)
            print("ok sbom-python.cdx.json, sbom-front-end.cdx.json")
            listed = True
        if python.name == f"python3.{sys.version_info.minor}":
            run_quickstart(programs, torch)
            print(f"ok {python.name} with {torch}: the quickstart ran")


if __name__ == "__main__":
    main(*sys.argv[1:])

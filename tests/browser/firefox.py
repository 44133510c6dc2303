"""Firefox as it is installed, over WebDriver BiDi, which it speaks by itself: no driver is needed.

Protocol: https://w3c.github.io/webdriver-bidi/
"""

import base64
import json
import os
import shutil
import subprocess
import time
from itertools import count
from pathlib import Path
from typing import Any, Self

import websocket

LISTENS = "WebDriver BiDi listening on "
TIMEOUT = 240.0


def find_firefox() -> str | None:
    """Return a Firefox: ``HFMEM_FIREFOX``, or one that is installed; None where there is none."""
    wanted = os.environ.get("HFMEM_FIREFOX")
    return wanted or next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)


class Firefox:
    """One page of a Firefox that nobody else uses, with an empty folder for its profile."""

    def __init__(self, path: str, profile: Path) -> None:
        self.errors: list[str] = []  # that the page logged or threw
        self._numbers = count(1)
        self._socket: Any = None
        options = ("--headless", "--no-remote", "--remote-debugging-port", "0")
        log = profile / "stderr.txt"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [path, *options, "--profile", str(profile)], stdout=file, stderr=file
            )
        try:
            self._socket = websocket.create_connection(
                f"{_address(log)}/session", suppress_origin=True, timeout=TIMEOUT
            )
            self._call("session.new", capabilities={})
            self._call("session.subscribe", events=["log.entryAdded"])
            (context,) = self._call("browsingContext.getTree")["contexts"]
            self._page = context["context"]
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._process.terminate()
        self._process.wait(TIMEOUT)

    def add_script(self, script: str) -> None:
        """Run a script in every page before its own."""
        self._call("script.addPreloadScript", functionDeclaration=f"() => {{ {script} }}")

    def resize(self, width: int, height: int) -> None:
        """Make the page so large, in pixels."""
        self._of_page("browsingContext.setViewport", viewport={"width": width, "height": height})

    def open(self, url: str) -> None:
        self._of_page("browsingContext.navigate", url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """Return what an expression is worth, or its promise, by way of JSON."""
        answer = self._call(
            "script.evaluate",
            expression=f"Promise.resolve({expression}).then(value => JSON.stringify(value ?? null))",
            target={"context": self._page},
            awaitPromise=True,
        )
        if answer["type"] == "exception":
            raise AssertionError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"]["value"])

    def wait_for(self, expression: str, timeout: float = TIMEOUT) -> Any:
        """Return what an expression is worth once it is worth anything."""
        deadline = time.monotonic() + timeout
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {expression}"
            time.sleep(0.1)
        return value

    def move_to(self, x: float, y: float) -> None:
        """Move the pointer, in pixels of the page."""
        move = {"type": "pointerMove", "x": round(x), "y": round(y)}
        pointer = {"type": "pointer", "id": "mouse", "actions": [move]}
        self._of_page("input.performActions", actions=[pointer])

    def screenshot(self, path: Path) -> None:
        """Take a picture of what is seen, where somebody wants one: a folder for it is there."""
        if path.parent.is_dir():
            shot = self._of_page("browsingContext.captureScreenshot")
            path.write_bytes(base64.b64decode(shot["data"]))

    def _of_page(self, method: str, **params: Any) -> dict[str, Any]:
        return self._call(method, context=self._page, **params)

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "log.entryAdded" and message["params"]["level"] == "error":
                self.errors.append(message["params"]["text"])
            if message.get("id") == number:
                assert message["type"] == "success", message
                answer: dict[str, Any] = message["result"]
                return answer


def _address(log: Path) -> str:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        for line in log.read_text("utf-8", "replace").splitlines():
            if line.startswith(LISTENS):
                return line.removeprefix(LISTENS).strip()
        time.sleep(0.1)
    message = "Firefox did not listen"
    raise TimeoutError(message)

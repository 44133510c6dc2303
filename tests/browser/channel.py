"""A kernel of a Jupyter server and the websocket to it, as a page has them."""

import json
import select
import socket
import time
import urllib.request
from typing import Any, Self
from uuid import uuid4

from jupyter_server.services.kernels.connection.base import deserialize_binary_message
from websocket import WebSocket, create_connection

from tests.browser.jupyter import JupyterLab

TIMEOUT = 240.0


class Channel:
    """A kernel and one client of it, that may hang up, come back, or not read."""

    def __init__(self, server: JupyterLab) -> None:
        request = urllib.request.Request(
            f"{server.url}api/kernels",
            data=b'{"name": "python3"}',
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            self.kernel = json.load(answer)["id"]
        # The server keeps what was missed for the client that comes back under the same name.
        self._client = uuid4().hex
        place = f"api/kernels/{self.kernel}/channels?session_id={self._client}"
        self._url = f"ws{server.url.removeprefix('http')}{place}"
        self._socket: WebSocket | None = None
        self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def connect(self, receive_buffer: int | None = None) -> None:
        """Open the websocket, where wanted with so few bytes of room for what is not yet read."""
        options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)] if receive_buffer else []
        self._socket = create_connection(self._url, timeout=TIMEOUT, sockopt=options)

    def hang_up(self) -> None:
        """Close the websocket; the kernel lives on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, code: str) -> str:
        """Send a cell, wait for nothing, and return the request's id."""
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        return self._send("execute_request", content)

    def say(self, comm: str, content: dict[str, Any]) -> None:
        """Say something to a widget, as its front end does."""
        self._send("comm_msg", {"comm_id": comm, "data": {"method": "custom", "content": content}})

    def _send(self, kind: str, content: dict[str, Any]) -> str:
        request = uuid4().hex
        header = {
            "msg_id": request,
            "msg_type": kind,
            "session": self._client,
            "username": "",
            "version": "5.3",
        }
        message = {"channel": "shell", "header": header, "content": content}
        assert self._socket is not None
        self._socket.send(json.dumps({**message, "parent_header": {}, "metadata": {}}))
        return request

    def run(self, code: str) -> list[dict[str, Any]]:
        """Run a cell and return the messages until the kernel was idle."""
        return self.read_until_idle(self.send(code))

    def read_until_idle(self, request: str) -> list[dict[str, Any]]:
        """Return what comes until a cell that was sent has ended, which a kernel says last."""
        messages: list[dict[str, Any]] = []
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            messages.append(self.read())
            last = messages[-1]
            if last["header"]["msg_type"] == "error":
                raise RuntimeError("\n".join(last["content"]["traceback"]))
            is_ours = last["parent_header"].get("msg_id") == request
            if is_ours and last["content"].get("execution_state") == "idle":
                return messages
        message = "the cell did not end in time"
        raise TimeoutError(message)

    def read_within(self, seconds: float) -> dict[str, Any] | None:
        """Return the next message, None if none begins to come in time."""
        assert self._socket is not None
        place = self._socket.fileno()  # type: ignore[no-untyped-call]  # websocket-client's
        is_there, _, _ = select.select([place], [], [], seconds)
        return self.read() if is_there else None

    def read(self) -> dict[str, Any]:
        assert self._socket is not None
        data = self._socket.recv()
        if isinstance(data, bytes):
            message: dict[str, Any] = deserialize_binary_message(data)  # type: ignore[no-untyped-call]  # jupyter_server's
            return message
        parsed: dict[str, Any] = json.loads(data)
        return parsed


def ours_in(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of the wire among a kernel's messages."""
    found = [
        one["content"]["data"]["content"]
        for one in messages
        if one["header"]["msg_type"] == "comm_msg"
        and one["content"]["data"].get("method") == "custom"
    ]
    return [one for one in found if "run" in one]

"""Drives a real ipykernel as a front end does, and keeps everything it says, in order.

Cells run in a process of their own, with the Python that runs the tests or that HFMEM_KERNEL_PYTHON names,
and this checkout first on its path. One thread reads and writes: a message is seen when something here
waits for it.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any, Self

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

from tests.kernel.over_ipc import KernelOverIpc, OneCommand

__all__ = ["Kernel", "Message", "Result", "Running"]

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT = 240.0
CELL_TIMEOUT = 240.0

KERNEL_PYTHON = os.environ.get("HFMEM_KERNEL_PYTHON", sys.executable)
"""The client is ours in any case: only the kernel has another host's packages."""


@dataclass(frozen=True, slots=True)
class Running:
    """A cell that was sent, and whose end is not awaited yet."""

    request: str
    first: int
    """Where its messages begin in `Kernel.published`."""


def ipykernel_of(python: str = KERNEL_PYTHON) -> list[str]:
    return [python, "-m", "ipykernel_launcher", "-f", "{connection_file}"]


class Kernel:
    """An ipykernel process and a client of it.

    Parameters
    ----------
    env : mapping, optional
        Variables of its environment besides ours; None takes one away.
    command : sequence of str, optional
        What begins it, instead of a new interpreter.
    """

    def __init__(
        self, env: Mapping[str, str | None] | None = None, *, command: Sequence[str] | None = None
    ) -> None:
        self.published: list[Message] = []  # on IOPub since the start
        self._replies: dict[str, dict[str, Any]] = {}  # that nobody has asked for yet
        # A copy of a process may end a moment after the one that stands in for it.
        self._home = TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True)
        self._manager = KernelOverIpc(kernel_spec_manager=OneCommand(command or ipykernel_of()))
        self._manager.start_kernel(env=self._environment(env or {}), cwd=self._home.name)
        self._client: BlockingKernelClient = self._manager.blocking_client()
        self._client.start_channels()
        try:
            self._client.wait_for_ready(timeout=START_TIMEOUT)
        except RuntimeError:
            self.shutdown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def alive(self) -> bool:
        return bool(self._manager.is_alive())

    @property
    def folder(self) -> Path:
        """The kernel's working directory; goes with it."""
        return Path(self._home.name)

    @property
    def pid(self) -> int:
        provisioner = self._manager.provisioner
        assert isinstance(provisioner, LocalProvisioner)
        assert provisioner.pid is not None
        return provisioner.pid

    def run(
        self,
        code: str,
        *,
        timeout: float = CELL_TIMEOUT,
        interrupt_once: Callable[[], bool] | None = None,
        silent: bool = False,
    ) -> Result:
        """Run a cell, `silent` as front ends run code of their own, and wait until it is idle.

        The kernel is interrupted once `interrupt_once` returns true: it is asked until then, see `has_made`.
        """
        deadline = time.monotonic() + timeout
        running = self.send(code, silent=silent)
        if interrupt_once is not None:
            # Nothing that is published tells that the cell's own code runs: "busy" and "execute_input" come
            # before it, when an interrupt finds ipykernel itself at work, which logs it and sends no reply
            # (Kernel.dispatch_shell); and one that met the sending of a print was lost.
            while not interrupt_once():
                assert time.monotonic() < deadline, "what the interrupt waits for did not come"
                self.read(0.02)
            self.interrupt()
        result = self.collect(running, timeout=deadline - time.monotonic())
        # For a moment after an error ipykernel 6 aborts what comes next, too: a person runs it again.
        while result.status == "aborted" and time.monotonic() < deadline:
            self.read(0.1)
            result = self.collect(self.send(code, silent=silent))
        return result

    def has_made(self, name: str) -> Callable[[], bool]:
        """Return a function that returns whether a cell has made this file, which does not exist yet."""
        path = self.folder / name
        path.unlink(missing_ok=True)
        return path.exists

    def send(
        self, code: str, *, silent: bool = False, subshell: str = "", as_terminal: bool = False
    ) -> Running:
        """Send a cell as a page or a terminal does, to a subshell if wanted, and return at once."""
        first = len(self.published)
        content = {"code": code, "silent": silent, "store_history": not silent}
        content |= {"user_expressions": {}, "stop_on_error": True, "allow_stdin": as_terminal}
        of_page = {} if as_terminal else {"trusted": True}
        message = self._client.session.msg("execute_request", content, metadata=of_page)
        if subshell:
            message["header"]["subshell_id"] = subshell
        self._client.shell_channel.send(message)
        return Running(str(message["header"]["msg_id"]), first)

    def open_subshell(self) -> str:
        """Return the id of a new subshell, whose cells run beside those of the main shell; 7 has these."""
        known = self._client.kernel_info(reply=True, timeout=START_TIMEOUT)["content"]
        if "kernel subshells" not in known.get("supported_features", []):
            pytest.skip("this ipykernel has no subshells")
        request = self._client.session.msg("create_subshell_request", {})
        self._client.control_channel.send(request)
        while True:
            reply = self._client.control_channel.get_msg(timeout=START_TIMEOUT)
            if reply["parent_header"].get("msg_id") == request["header"]["msg_id"]:
                return str(reply["content"]["subshell_id"])

    def collect(self, running: Running, *, timeout: float = CELL_TIMEOUT) -> Result:
        deadline = time.monotonic() + timeout
        self._until(lambda one: self._is_state(one, running, "idle"), running.first, deadline)
        messages = tuple(self.published[running.first :])
        # Cells of two shells may be answered in another order than that in which they are asked for.
        while running.request not in self._replies:
            try:
                reply = self._client.get_shell_msg(timeout=max(1.0, deadline - time.monotonic()))
            except Empty:
                message = f"the cell is idle, and no reply to it came within {timeout:.0f} s"
                raise TimeoutError(message) from None
            self._replies[reply["parent_header"].get("msg_id", "")] = reply["content"]
        return Result(running.request, self._replies.pop(running.request), messages)

    def read(self, seconds: float) -> tuple[Message, ...]:
        """Return what is published within the next seconds."""
        first, deadline = len(self.published), time.monotonic() + seconds
        while self._next(deadline) is not None:
            pass
        return tuple(self.published[first:])

    def wait_for(
        self, wanted: Callable[[Message], bool], *, timeout: float = CELL_TIMEOUT
    ) -> Message:
        """Return the next unread message that is wanted."""
        return self._until(wanted, len(self.published), time.monotonic() + timeout)

    def complete(self, code: str) -> list[str]:
        reply = self._client.complete(code, reply=True, timeout=CELL_TIMEOUT)
        return list(reply["content"]["matches"])

    def send_comm(self, comm_id: str, data: Mapping[str, Any]) -> str:
        """Send a comm message as a widget's front end does, on the main shell; return its id."""
        message = self._client.session.msg("comm_msg", {"comm_id": comm_id, "data": dict(data)})
        self._client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def interrupt(self) -> None:
        self._manager.interrupt_kernel()

    def restart(self) -> None:
        self._manager.restart_kernel(now=True)
        self._client.wait_for_ready(timeout=START_TIMEOUT)

    def shutdown(self) -> None:
        """End the process and remove its folder."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)
        self._manager.cleanup_resources()
        self._home.cleanup()

    def _environment(self, extra: Mapping[str, str | None]) -> dict[str, str]:
        env = {
            **os.environ,
            "IPYTHONDIR": f"{self._home.name}/ipython",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        }
        for name, value in extra.items():
            if value is None:
                env.pop(name, None)
            else:
                env[name] = value
        return env

    def _until(self, wanted: Callable[[Message], bool], first: int, deadline: float) -> Message:
        seen = first
        while True:
            for message in self.published[seen:]:
                seen += 1
                if wanted(message):
                    return message
            if self._next(deadline) is None:
                recent = [f"{one.kind} {one.content}"[:200] for one in self.published[first:]]
                state = "waiting for" if self.alive else "the kernel died before"
                text = f"{state} a message; published so far:\n" + "\n".join(recent[-20:])
                raise TimeoutError(text)

    def _next(self, deadline: float) -> Message | None:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return None
        try:
            raw = self._client.get_iopub_msg(timeout=remaining)
        except Empty:
            return None
        message = Message(
            kind=raw["msg_type"],
            parent=raw["parent_header"].get("msg_id", ""),
            content=raw["content"],
            metadata=raw["metadata"],
            buffers=tuple(bytes(one) for one in raw["buffers"]),
        )
        self.published.append(message)
        return message

    @staticmethod
    def _is_state(message: Message, running: Running, state: str) -> bool:
        is_own = message.kind == "status" and message.parent == running.request
        return is_own and message.content["execution_state"] == state


def points_at(traceback: str, line: int) -> bool:
    """Return whether a traceback names a line of the cell; IPython 7 only draws an arrow to it."""
    return re.search(rf"line {line}\b|> {line} ", traceback) is not None


OUTPUTS = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "error", "clear_output"}
)


@dataclass(frozen=True, slots=True)
class Message:
    kind: str  # its ``msg_type``
    parent: str  # the id of its request; empty if it names none
    content: Mapping[str, Any]
    metadata: Mapping[str, Any]
    buffers: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Result:
    request: str  # the id of its execute request
    reply: Mapping[str, Any]  # the content of the execute reply
    messages: tuple[Message, ...]  # until the cell was idle, whoever they belong to

    @property
    def status(self) -> str:
        """The status of the reply: ok, error or aborted."""
        return str(self.reply["status"])

    def of(self, *kinds: str) -> tuple[Message, ...]:
        """Return this cell's own messages of these kinds, in order."""
        return tuple(
            one for one in self.messages if one.kind in kinds and one.parent == self.request
        )

    @property
    def outputs(self) -> tuple[Message, ...]:
        """The outputs of this cell: streams, displays and their updates, its value, errors."""
        return self.of(*OUTPUTS)

    @property
    def errors(self) -> tuple[Message, ...]:
        return self.of("error")

    @property
    def displays(self) -> tuple[Message, ...]:
        return self.of("display_data", "update_display_data")

    @property
    def value(self) -> Mapping[str, Any] | None:
        """The MIME bundle of the cell's last expression."""
        values = self.of("execute_result")
        return values[-1].content["data"] if values else None

    @property
    def value_text(self) -> str:
        """Its plain text; empty without one."""
        return str((self.value or {}).get("text/plain", ""))

    @property
    def shown(self) -> dict[str, Any]:
        """The MIME bundle of the one display of a cell that works."""
        assert self.status == "ok", (self.text(), self.text("stderr"), self.errors)
        (display,) = self.displays
        return dict(display.content["data"])

    def text(self, stream: str = "stdout") -> str:
        streams = (one.content for one in self.of("stream"))
        return "".join(one["text"] for one in streams if one["name"] == stream)

    @property
    def comms(self) -> tuple[Message, ...]:
        """All comm messages meanwhile, since a thread's messages may name another cell as their parent."""
        return tuple(one for one in self.messages if one.kind.startswith("comm_"))

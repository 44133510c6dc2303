"""Real steps at a forecast's size, with random weights: whether the forecast holds.

A new process makes them, so that nothing of the user's is touched, and nothing is left when it has ended.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any, Final

import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.model import Tried
from hfmem_widget.features.fit.optimizers import OF_TORCH
from hfmem_widget.features.fit.room import rooms
from hfmem_widget.features.fit.setting import Setting, foreign
from hfmem_widget.text import plain

CHILD: Final = (sys.executable, "-P", "-m", "hfmem_widget.features.fit.trial_process")
_KILLED: Final = -9
"""The code of a process that the kernel has ended, such as for the host's memory."""


def tried_step(
    model_or_config: Any,
    setting: Setting,
    *,
    seconds: float = 120.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Tried:
    """Return what real steps of a setting take, or raise OptionError.

    A new process makes them, with a new model, on the current GPU, or on the host, where tensors are counted.
    After so many `seconds` it is stopped. `progress` is called with what is done, and with "" at the end.
    """
    model, config = model_or_config, getattr(model_or_config, "config", model_or_config)
    if unsupported := ", ".join(_unsupported(model, config, setting)):
        raise OptionError(f"a real step cannot be tried with {unsupported}")
    is_up, named = torch.cuda.is_initialized(), getattr(model, "named_parameters", tuple)
    gpu = f"cuda:{torch.cuda.current_device() if is_up else 0}"
    document = {
        "device": gpu if setting.device == "cuda" else "cpu",
        "setting": asdict(setting),
        "kind": type(config).__name__,
        "attention": getattr(config, "_attn_implementation", None),
        "frozen": [name for name, parameter in named() if not parameter.requires_grad],
    }
    with foreign("a real step cannot be tried: the configuration is no JSON"):
        of_live = {} if model is config else {"architectures": [type(model).__name__]}
        text = json.dumps({**document, "config": config.to_dict() | of_live})
    progress("trying real steps in a new process …")
    try:
        with foreign("the real step failed"):
            return Tried(**_answer(text, seconds))
    finally:
        progress("")


def _unsupported(model: Any, config: Any, setting: Setting) -> Iterator[str]:
    """Yield what cannot be done in a new process, in a few words."""
    yield from (name for name in ("kv", "shards") if getattr(setting, name))
    kinds, library = {type(model), type(config)}, sys.modules.get("transformers")
    if others := [kind for kind in kinds if getattr(library, kind.__name__, None) is not kind]:
        yield f"{plain(others[0].__name__)}, which is not of transformers itself"
    is_own = not setting.training or setting.optimizer in OF_TORCH
    needing = " and ".join(filter(None, [setting.quantized, "" if is_own else setting.optimizer]))
    if needing and find_spec("bitsandbytes") is None:
        yield f"{needing}, which needs bitsandbytes"
    elif needing and all(room.device == "cpu" for room in rooms()[0]):
        yield f"{needing}, which needs a GPU"


def _answer(document: str, seconds: float) -> dict[str, Any]:
    """Return what a new process says to a document. It imports what this one does, and nobody follows it."""
    environment = {name: each for name, each in os.environ.items() if not name.startswith("HFMEM_")}
    # What is in the current folder comes last: it may have the names of modules not imported so far.
    places = os.pathsep.join([*filter(None, map(str, sys.path)), *["."] * ("" in sys.path)])
    environment |= {"PYTHONPATH": places, "HF_HUB_OFFLINE": "1"}
    with Popen(  # noqa: S603  (ourselves)
        CHILD,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as child:
        try:
            said, complaints = child.communicate(document, timeout=seconds)
        except BaseException as error:
            with suppress(AttributeError, OSError):  # on Windows, and where it has just ended
                os.killpg(child.pid, -_KILLED)  # its session, so what it has started too
            child.kill()
            child.wait()
            if isinstance(error, TimeoutExpired):
                message = f"a real step took longer than {seconds:g} s, and was stopped"
                raise OptionError(message) from None
            raise
    if said:
        answer: dict[str, Any] = json.loads(said)
        if "error" in answer:
            raise OptionError(answer["error"])
        return answer
    *_, why = ("its process ended without an error", *complaints.strip().splitlines())
    if child.returncode == _KILLED:
        why = "its process was killed, as where the host's memory runs out"
    raise OptionError(f"the real step failed: {plain(why, 200)}")

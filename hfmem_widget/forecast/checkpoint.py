"""Models that lie on disk: their configuration, and what their files say of themselves. Nothing is loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hfmem_widget.errors import OptionError
from hfmem_widget.labels import plain
from hfmem_widget.units import format_bytes

MOST_HEADER: Final = 100 * 2**20
"""Bytes; safetensors itself allows no longer header."""

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "F64": "float64",
        "F32": "float32",
        "F16": "float16",
        "BF16": "bfloat16",
        "I8": "int8",
        "U8": "uint8",
    }
)
"""The types of safetensors, as PyTorch calls them; others keep their name."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What the safetensors files of a folder hold.

    Attributes
    ----------
    types : mapping of str to int
        Bytes by type.
    tensors, files : int
    """

    types: Mapping[str, int]
    tensors: int
    files: int

    @property
    def dtype(self) -> str:
        """The type of most of it; empty where there is nothing."""
        return max(self.types, key=lambda name: self.types[name], default="")

    def text(self) -> str:
        """Return it in a few words; empty where there is nothing."""
        if not self.types:
            return ""
        sizes = ", ".join(
            f"{format_bytes(size)} {plain(name)}"
            for name, size in sorted(self.types.items(), key=lambda one: -one[1])
        )
        files = "1 file" if self.files == 1 else f"{self.files} files"
        return f"on disk: {sizes}; {self.tensors} tensors in {files}"


def read_config(name: str) -> tuple[Any, Path | None]:
    """Return a configuration of transformers, and the folder that it lies in.

    Parameters
    ----------
    name : str
        A folder with a ``config.json``, a JSON file, or the name of a model that is in the local cache.
        Nothing is fetched.

    Raises
    ------
    OptionError
        If there is none, or transformers does not know it; the message has transformers' reason.
    """
    try:
        from transformers import AutoConfig
    except ImportError:
        message = "a forecast needs transformers: pip install transformers"
        raise OptionError(message) from None
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        message = f"the folder {plain(name)!r} has no config.json"
        raise OptionError(message)
    if not path.exists() and (name.endswith(".json") or name.startswith((".", "/", "~"))):
        message = f"there is no file or folder {plain(name)!r}"
        raise OptionError(message)
    is_local = path.exists()
    try:
        config = AutoConfig.from_pretrained(str(path) if is_local else name, local_files_only=True)
    except Exception as error:
        reason = plain(error, 300)
        if is_local:
            message = f"transformers does not know the configuration in {plain(name)!r}: {reason}"
        else:
            message = (
                f"{plain(name)!r} is no folder here and not in the local cache of Hugging Face; nothing is "
                "fetched. huggingface_hub.hf_hub_download(name, 'config.json') fetches its configuration."
            )
        raise OptionError(message) from error
    folder = path if path.is_dir() else None
    return config, folder


def read_stored(folder: Path) -> Stored:
    """Return what the safetensors files of a folder say in their headers.

    Raises
    ------
    OptionError
        If one of them is not what it should be.
    """
    types: dict[str, int] = {}
    tensors = files = 0
    for path in sorted(folder.glob("*.safetensors")):
        files += 1
        for entry in _entries(path):
            name = TYPES.get(entry["dtype"], entry["dtype"])
            types[name] = types.get(name, 0) + entry["bytes"]
            tensors += 1
    return Stored(types, tensors, files)


def _entries(path: Path) -> list[Mapping[str, Any]]:
    """Return what a file's header says of each tensor: eight bytes of length, then JSON."""
    entries: list[Mapping[str, Any]] = []
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if 2 <= length <= MOST_HEADER else {"": {}}
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = (int(edge) for edge in entry["data_offsets"])
                entries.append({"dtype": str(entry["dtype"]), "bytes": max(0, end - begin)})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        message = f"{plain(path.name)} is no safetensors file, or not a whole one"
        raise OptionError(message) from error
    return entries

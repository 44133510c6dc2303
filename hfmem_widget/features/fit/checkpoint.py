"""Models on disk: their configuration, and the headers of their files. Nothing is loaded."""

import json
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.setting import errors_as
from hfmem_widget.recording.file import open_regular
from hfmem_widget.text import format_bytes, format_counted, plain

MOST_HEADER: Final = 100_000_000  # bytes; safetensors itself allows no longer header

TYPES: Final = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I8": "int8",
    "U8": "uint8",
}
"""PyTorch's names of safetensors' types; other types keep their own."""


def read_config(name: str) -> tuple[Any, Path | None]:
    """Return a configuration of transformers and its folder, None in the cache, or raise OptionError.

    `name` is a folder with a ``config.json``, a JSON file, or the name of a model in the local cache. Nothing
    is downloaded, and none of the model's own code is run.
    """
    if find_spec("transformers") is None:
        raise OptionError("a forecast needs transformers: pip install transformers")
    with errors_as(f"{plain(name)!r} cannot be read"):
        path = _path_of(name)
    if path is None and not _is_cached(name):
        raise OptionError(
            f"{plain(name)!r} is neither a local folder nor in the Hugging Face cache, and %memfit never "
            f"downloads; run !hf download {plain(name)} config.json first"
        )
    from transformers import AutoConfig

    with errors_as(f"transformers does not know the configuration in {plain(name)!r}"):
        try:
            config = AutoConfig.from_pretrained(
                str(path or name), local_files_only=True, trust_remote_code=False
            )
        except ValueError as error:
            if "trust_remote_code" not in str(error):
                raise
            raise OptionError(
                f"{plain(name)!r} needs Python code from its repository, which %memfit does not run; load "
                "the model yourself and pass it instead of its name"
            ) from None
    return config, path if path is not None and path.is_dir() else None


def _path_of(name: str) -> Path | None:
    """Return the file or folder of a name; None if it may be one in the cache."""
    path = Path(name).expanduser()
    if path.is_dir() and not (path / "config.json").is_file():
        raise OptionError(f"the folder {plain(name)!r} has no config.json")
    if path.exists():
        if not path.is_dir():
            with open_regular(path) as file:
                is_json = file.read(64).lstrip().startswith(b"{")
            if not is_json:
                raise OptionError(
                    f"{plain(name)!r} is neither a configuration (JSON) nor a recording"
                )
        return path
    if name.endswith(".json") or name.startswith((".", "/", "~")):
        raise OptionError(f"no file or folder {plain(name)!r}")
    return None


def _is_cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)
    except (OSError, ValueError):  # not a valid name of a model
        return False


def read_stored(folder: Path) -> tuple[str, str]:
    """Return the type of most bytes in a folder's safetensors files, and the contents of all in a few words.

    Only headers are read. Both are empty without tensors. Raise OptionError for a file that is incomplete.
    """
    sizes: Counter[str] = Counter()
    tensors = 0
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        with errors_as(f"{plain(path.name)} is not a complete safetensors file"):
            for _, dtype, size in entries(path):
                sizes[TYPES.get(dtype, dtype)] += size
                tensors += 1
    if not sizes:
        return "", ""
    by_size = sizes.most_common()
    types = ", ".join(f"{format_bytes(size)} {plain(name)}" for name, size in by_size)
    files = format_counted(len(paths), "file")
    return by_size[0][0], f"on disk: {types}; {tensors} tensors in {files}"


def entries(path: Path) -> Iterator[tuple[str, str, int]]:
    """Yield each tensor's name, type and bytes in a file's header: eight bytes of length, then JSON."""
    with open_regular(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= MOST_HEADER:
            message = f"a header of {length} bytes"
            raise ValueError(message)
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (int(edge) for edge in entry["data_offsets"])
            yield name, str(entry["dtype"]), max(0, end - begin)

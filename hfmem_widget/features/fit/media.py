"""Images and sound on the meta device, as a model's processor would give them, and the tokens they become.

One image or one sound for each row. Which shape an image has follows from what `forward` takes beside it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.known import spread
from hfmem_widget.features.fit.live_bytes import LiveBytes

ANY_SIZE: Final = 448  # pixels of an image's side, where a model takes any

_SIGHTS: Final = ("vision_config", "encoder", "vision", "backbone_config", "qformer_config")
_SOUNDS: Final = ("audio_config", "encoder_config", "speech_config", "encoder")
_IMAGE_TOKENS: Final = ("image_token_id", "image_token_index", "img_token_id", "media_token_id")
_SOUND_TOKENS: Final = ("audio_token_id", "audio_token_index", "speech_token_id")


class Media(NamedTuple):
    """What goes in beside the text: tensors by argument, whole ones of the host with their values.

    `token` stands for it in the text, as often in each row as `tokens` says.
    """

    given: Mapping[str, torch.Tensor]
    token: int = -1
    tokens: int = 0
    text: str = ""  # what is assumed, in a few words


def of_images(model: Any, takes: Mapping[str, Any], batch: int, size: int | None) -> Media:
    """Return one image for each row of a model that reads images and text."""
    config = model.config
    seen = _part(config, _SIGHTS, "image_size", "patch_size")
    given, side = _pixels(model, seen, takes, batch, size)
    tokens = _features(model, "get_image_features", given, batch)
    token = _first(config, _IMAGE_TOKENS)
    return Media(given, token, tokens if token >= 0 else 0, f"one image of {side} per row")


def of_sound(model: Any, takes: Mapping[str, Any], batch: int) -> Media:
    """Return one sound for each row of a model that reads sound and text."""
    config = model.config
    frames = sound_frames(config)
    given = {"input_features": torch.empty(batch, *frames, dtype=_dtype(model), device="meta")}
    for name in ("input_features_mask", "feature_attention_mask"):
        if name in takes:
            given[name] = torch.ones(batch, max(frames), dtype=torch.int64)
    tokens = _features(model, "get_audio_features", given, batch)
    token = _first(config, _SOUND_TOKENS)
    return Media(
        given, token, tokens if token >= 0 else 0, f"one sound of {max(frames):,} frames per row"
    )


def sound_frames(config: Any) -> tuple[int, int]:
    """Return the shape of a sound's features: a spectrum over time, or where a Conformer reads it, turned."""
    heard = _part(config, _SOUNDS, "num_mel_bins", "feature_size")
    bins = int(getattr(heard, "num_mel_bins", 0) or getattr(heard, "feature_size", 0) or 80)
    longest = getattr(heard, "max_source_positions", None)
    if longest and hasattr(heard, "num_mel_bins"):
        return bins, 2 * int(longest)
    return int(getattr(heard, "max_length", 0) or 1000), bins


def image_shape(config: Any, size: int | None = None) -> tuple[int, int, int]:
    """Return channels, height and width of an image as a configuration has them."""
    seen = _part(config, _SIGHTS, "image_size")
    is_free = getattr(seen, "model_type", "") == "pixtral"
    own = None if is_free and size else getattr(seen, "image_size", None)
    sides = own or size or 224
    height, width = sides if isinstance(sides, list | tuple) else (sides, sides)
    channels = int(_first_of((seen,), "num_channels", "in_channels", "in_chans") or 3)
    return channels, int(height), int(width)


def _pixels(
    model: Any, seen: Any, takes: Mapping[str, Any], batch: int, size: int | None
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of an image by argument, and its size in pixels."""

    def floats(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    config, dtype = model.config, _dtype(model)
    run = _run(model, "get_image_features")
    wanted = takes if run is None else inspect.signature(run).parameters
    own = getattr(seen, "image_size", None)
    patch = getattr(seen, "patch_size", 14)
    patch = patch[0] if isinstance(patch, list | tuple) else int(patch)
    channels, height, width = image_shape(config, size or ANY_SIZE)
    if "image_grid_thw" in takes or "spatial_shapes" in takes:
        merged = patch * int(
            _first_of((seen, config), "spatial_merge_size", "downsample_factor") or 2
        )
        height, width = (max(1, round((size or ANY_SIZE) / merged)) * merged,) * 2
    down, across = height // patch, width // patch
    side = f"{height}\u00d7{width} pixels"
    if "image_grid_thw" in takes:
        depth = channels * int(getattr(seen, "temporal_patch_size", 1)) * patch**2
        grid = torch.tensor([[1, down, across]] * batch)
        return {"pixel_values": floats(batch * down * across, depth), "image_grid_thw": grid}, side
    if "spatial_shapes" in takes:
        given = {
            "pixel_values": floats(batch, down * across, channels * patch**2),
            "spatial_shapes": torch.tensor([[down, across]] * batch),
            "pixel_attention_mask": torch.ones(batch, down * across, dtype=torch.int64),
        }
        return given, side
    if "aspect_ratio_ids" in takes:
        tiles = int(getattr(seen, "max_num_tiles", 1))
        given = {
            "pixel_values": floats(batch, 1, tiles, channels, height, width),
            "aspect_ratio_ids": torch.ones(batch, 1, dtype=torch.int64),
            "aspect_ratio_mask": torch.ones(batch, 1, tiles, dtype=torch.int64),
        }
        return given, f"{tiles} tiles of {side}"
    if "pixel_attention_mask" in takes:
        mask = torch.ones(batch, 1, height, width, dtype=torch.int64)
        return {
            "pixel_values": floats(batch, 1, channels, height, width),
            "pixel_attention_mask": mask,
        }, side
    given = {"pixel_values": floats(batch, channels, height, width)}
    if "image_sizes" in takes and hasattr(config, "image_grid_pinpoints"):
        tiles = _tiles(config, height, width, own or height)
        given["pixel_values"] = floats(batch, tiles, channels, height, width)
        side = f"{side}, in {tiles} tiles,"
    needed = getattr(wanted.get("image_sizes"), "default", None) is inspect.Parameter.empty
    if needed or ("image_sizes" in takes and getattr(seen, "model_type", "") == "pixtral"):
        given["image_sizes"] = torch.tensor([[height, width]] * batch)
    return given, side


def _tiles(config: Any, height: int, width: int, side: int) -> int:
    """Return into how many tiles LLaVA-NeXT cuts an image, the whole of it included."""
    module = sys.modules[f"transformers.models.{config.model_type}.modeling_{config.model_type}"]
    count = module.image_size_to_num_patches([height, width], config.image_grid_pinpoints, side)
    return int(count)


def _features(model: Any, name: str, given: Mapping[str, torch.Tensor], batch: int) -> int:
    """Return how many tokens of the text each row's image or sound takes, by a dry run of that part alone."""
    run = _run(model, name)
    if run is None:
        return 0
    width = model.get_input_embeddings().weight.shape[-1]
    was_training = model.training
    model.eval()
    with torch.no_grad(), LiveBytes(), AsOnDevice("cuda"):
        made = run(**{key: spread(value) for key, value in given.items()})
    model.train(was_training)
    # An attribute: some models set it on an output that has no such key.
    pooled = getattr(made, "pooler_output", None)
    found = pooled if pooled is not None else made
    elements = sum(one.numel() for one in tree_leaves(found) if isinstance(one, torch.Tensor))
    return -(-int(elements) // (int(width) * batch))


def _run(model: Any, name: str) -> Any:
    # The inner model's has all of its arguments by name.
    return getattr(getattr(model, "model", None), name, None) or getattr(model, name, None)


def _part(config: Any, names: tuple[str, ...], *wanted: str) -> Any:
    """Return the part of a configuration that has any of the wanted attributes; the whole one by default."""
    parts = list(_parts(config, names))
    for attribute in wanted:
        for part in parts:
            if getattr(part, attribute, None) is not None:
                return part
    return config


def _parts(config: Any, names: tuple[str, ...]) -> Iterator[Any]:
    for name in names:
        part = getattr(config, name, None)
        if part is not None and not isinstance(part, dict | str | int):
            yield part
            yield from _parts(part, names)
    thinker = getattr(config, "thinker_config", None)
    if thinker is not None:
        yield from _parts(thinker, names)
    yield config


def _first_of(parts: tuple[Any, ...], *names: str) -> Any:
    found = (getattr(part, name, None) for part in parts for name in names)
    return next((one for one in found if one), None)


def _first(config: Any, names: tuple[str, ...]) -> int:
    token = next((getattr(config, name, None) for name in names if hasattr(config, name)), None)
    return int(token) if isinstance(token, int) else -1


def _dtype(model: Any) -> torch.dtype:
    floats = (one.dtype for one in model.parameters() if one.is_floating_point())
    found: torch.dtype = next(floats, torch.float32)
    return found

"""A batch on the meta device, as a model's own processor and collator would make it.

It has text, and one image or one sound for each row. An image's shape follows from the other arguments of
`forward`. A dry run of the image's or sound's encoder gives its number of tokens.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.as_on_device import AsOnDevice
from hfmem_widget.features.fit.dry_run import undisturbed
from hfmem_widget.features.fit.live_bytes import LiveBytes, meta_copy
from hfmem_widget.features.fit.setting import errors_as
from hfmem_widget.monitor.batch import SeenBatch
from hfmem_widget.text import plain

ANY_SIZE: Final = 448  # pixels of an image's side, where a model takes any

_SIGHTS: Final = ("vision_config", "encoder", "vision", "backbone_config", "qformer_config")
_SOUNDS: Final = ("audio_config", "encoder_config", "speech_config", "encoder")
_IMAGE_TOKENS: Final = ("image_token_id", "image_token_index", "img_token_id", "media_token_id")
_SOUND_TOKENS: Final = ("audio_token_id", "audio_token_index", "speech_token_id")


class Media(NamedTuple):
    """Images or sounds beside the text: tensors by argument; those of whole numbers have values, on the host.

    Each row of text has `tokens` times `token` for its image or sound.
    """

    given: Mapping[str, torch.Tensor]
    token: int = -1
    tokens: int = 0
    text: str = ""  # the assumption in words; empty without images and sounds


def _media(model: Any, takes: Mapping[str, Any], batch: int, size: int | None) -> Media:
    """Return one image or one sound for each row, for a model that reads it with the text."""
    with errors_as(f"{plain(type(model).__name__)} {CANNOT_RUN}"), undisturbed():
        if "pixel_values" in takes:
            given, extent = _pixels(model, takes, batch, size)
            what, run = "image", "get_image_features"
        elif "input_features" in takes:
            given, extent = _sound(model, takes, batch)
            what, run = "sound", "get_audio_features"
        else:
            return Media({})
        tokens = _features(model, run, given, batch)
    token = _first_of((model.config,), *(_IMAGE_TOKENS if what == "image" else _SOUND_TOKENS))
    text = f"one {what} of {extent} per row"
    return Media(given, *((token, tokens) if isinstance(token, int) else (-1, 0)), text)


def _sound(model: Any, takes: Mapping[str, Any], batch: int) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of a sound by argument, and its length in words."""
    frames = sound_frames(model.config)
    given = {"input_features": torch.empty(batch, *frames, dtype=model.dtype, device="meta")}
    for name in ("input_features_mask", "feature_attention_mask"):
        if name in takes:
            given[name] = _ones(batch, max(frames))
    return given, f"{max(frames):,} frames"


def sound_frames(config: Any) -> tuple[int, int]:
    """Return the shape of a sound's features: bins of a spectrum by time; time by bins for a Conformer."""
    part = _part(config, _SOUNDS, "num_mel_bins", "feature_size")
    bins = int(_first_of((part,), "num_mel_bins", "feature_size") or 80)
    longest = getattr(part, "max_source_positions", None)
    if longest and hasattr(part, "num_mel_bins"):
        return bins, 2 * int(longest)
    return int(getattr(part, "max_length", 0) or 1000), bins


def image_shape(config: Any, size: int | None = None) -> tuple[int, int, int]:
    """Return channels, height and width of an image; `size` is its side where a model takes any size."""
    part = _part(config, _SIGHTS, "image_size")
    takes_any = getattr(part, "model_type", "") == "pixtral"
    own = None if takes_any and size else getattr(part, "image_size", None)
    sides = own or size or 224
    height, width = sides if isinstance(sides, list | tuple) else (sides, sides)
    channels = int(_first_of((part,), "num_channels", "in_channels", "in_chans") or 3)
    return channels, int(height), int(width)


def _pixels(
    model: Any, takes: Mapping[str, Any], batch: int, size: int | None
) -> tuple[dict[str, torch.Tensor], str]:
    """Return the tensors of an image by argument, and its size in words."""
    config = model.config
    run = _run(model, "get_image_features")
    wanted = takes if run is None else inspect.signature(run).parameters
    vision = _part(config, _SIGHTS, "image_size", "patch_size")
    patch = getattr(vision, "patch_size", 14)
    patch = patch[0] if isinstance(patch, list | tuple) else int(patch)
    channels, height, width = image_shape(config, size or ANY_SIZE)
    if "image_grid_thw" in takes or "spatial_shapes" in takes:
        merged = patch * int(
            _first_of((vision, config), "spatial_merge_size", "downsample_factor") or 2
        )
        height, width = (max(1, round((size or ANY_SIZE) / merged)) * merged,) * 2
    rows, columns = height // patch, width // patch
    extent = f"{height}\u00d7{width} pixels"
    shape: tuple[int, ...] = (batch, channels, height, width)
    others: dict[str, torch.Tensor] = {}
    needed = getattr(wanted.get("image_sizes"), "default", None) is inspect.Parameter.empty
    if "image_grid_thw" in takes:
        depth = channels * int(getattr(vision, "temporal_patch_size", 1)) * patch**2
        shape = batch * rows * columns, depth
        others["image_grid_thw"] = torch.tensor([[1, rows, columns]] * batch)
    elif "spatial_shapes" in takes:
        shape = batch, rows * columns, channels * patch**2
        others["spatial_shapes"] = torch.tensor([[rows, columns]] * batch)
        others["pixel_attention_mask"] = _ones(batch, rows * columns)
    elif "aspect_ratio_ids" in takes:
        tiles = int(getattr(vision, "max_num_tiles", 1))
        shape, extent = (batch, 1, tiles, *shape[1:]), f"{tiles} tiles of {extent}"
        others["aspect_ratio_ids"] = _ones(batch, 1)
        others["aspect_ratio_mask"] = _ones(batch, 1, tiles)
    elif "pixel_attention_mask" in takes:
        shape = batch, 1, *shape[1:]
        others["pixel_attention_mask"] = _ones(batch, 1, height, width)
    else:
        if "image_sizes" in takes and hasattr(config, "image_grid_pinpoints"):
            side = getattr(vision, "image_size", None) or height
            tiles = _tiles(config, height, width, side)
            shape, extent = (batch, tiles, *shape[1:]), f"{extent}, in {tiles} tiles,"
        if needed or ("image_sizes" in takes and getattr(vision, "model_type", "") == "pixtral"):
            others["image_sizes"] = torch.tensor([[height, width]] * batch)
    pixels = torch.empty(shape, dtype=model.dtype, device="meta")
    return {"pixel_values": pixels, **others}, extent


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int64)


def _tiles(config: Any, height: int, width: int, side: int) -> int:
    """Return the number of LLaVA-NeXT's tiles of an image, the whole image included."""
    module = sys.modules[f"transformers.models.{config.model_type}.modeling_{config.model_type}"]
    count = module.image_size_to_num_patches([height, width], config.image_grid_pinpoints, side)
    return int(count)


def _features(model: Any, name: str, given: Mapping[str, torch.Tensor], batch: int) -> int:
    """Return the tokens of text that each row's image or sound takes, by a dry run of its encoder alone."""
    run = _run(model, name)
    if run is None:
        return 0
    width = model.get_input_embeddings().weight.shape[-1]
    was_training = model.training
    model.eval()
    with torch.no_grad(), LiveBytes(), AsOnDevice("cuda"):
        output = run(**{key: meta_copy(value) for key, value in given.items()})
    model.train(was_training)
    # An attribute, since some models set it on an output that has no such key.
    if (pooled := getattr(output, "pooler_output", None)) is not None:
        output = pooled
    elements = sum(one.numel() for one in tree_leaves(output) if isinstance(one, torch.Tensor))
    return -(-int(elements) // (int(width) * batch))


def _run(model: Any, name: str) -> Any:
    # The inner model's method names all of its arguments.
    return getattr(getattr(model, "model", None), name, None) or getattr(model, name, None)


def _part(config: Any, names: tuple[str, ...], *wanted: str) -> Any:
    """Return the part of a configuration that has one of the wanted attributes, or else the whole."""
    parts = list(_parts(config, names))
    pairs = ((part, attribute) for attribute in wanted for part in parts)
    return next((part for part, name in pairs if getattr(part, name, None) is not None), config)


def _parts(config: Any, names: tuple[str, ...]) -> Iterator[Any]:
    for name in (*names, "thinker_config"):
        part = getattr(config, name, None)
        if part is not None and not isinstance(part, dict | str | int):
            yield part
            yield from _parts(part, names)
    yield config


def _first_of(parts: tuple[Any, ...], *names: str) -> Any:
    values = (getattr(part, name, None) for part in parts for name in names)
    return next((one for one in values if one), None)


KNOWN = ("input_ids", "pixel_values", "input_features", "input_values")

LABELS = {"labels", "start_positions", "end_positions", "return_loss"}

CANNOT_RUN = "cannot run on PyTorch's meta device, so its activations are unknown"

LEAST_TEXT = 16  # tokens of text beside those of an image


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch; calling it makes a copy on the meta device.

    Tensors of whole numbers in `given` are on the host, with values; the others have only shapes.
    """

    given: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    has_length: bool = True  # False if its rows have neither tokens nor samples of sound

    def __call__(self) -> dict[str, Any]:
        """Return a copy on the meta device."""
        return {
            name: meta_copy(one) if isinstance(one, torch.Tensor) else one
            for name, one in self.given.items()
        }


def like_seen(default: Batch | None, seen: SeenBatch, batch: int, length: int) -> Batch:
    """Return a batch like the one that a model was called with, with other rows and another length.

    Tensors of the model's default batch are kept where they have these shapes, since none of their tokens has
    a special meaning. A default batch with images or sounds within its text is kept whole.
    """
    if default is not None and default.notes:
        return default
    usual = {} if default is None else default.given
    given: dict[str, Any] = {}
    for name, value in seen.given.items():
        if isinstance(value, bool):
            given[name] = value
            continue
        (first, *others), dtype = value
        lengths = others[:1] if dtype.is_floating_point else others  # other dimensions are widths
        rows = batch if first == seen.rows else first
        shape = (
            rows,
            *(length if size == seen.length else size for size in lengths),
            *others[len(lengths) :],
        )
        own = usual.get(name)
        if isinstance(own, torch.Tensor) and tuple(own.shape) == shape:
            given[name] = own
        elif dtype.is_floating_point:
            given[name] = torch.empty(shape, dtype=dtype, device="meta")
        else:
            given[name] = torch.ones(shape, dtype=dtype)
    if not given.keys() & LABELS:  # a loss that is computed elsewhere takes about as much
        given |= {name: usual[name] for name in LABELS & usual.keys()}
    return Batch(given, has_length=seen.length > 0)


def batch_for(
    model: Any, batch: int, length: int, *, with_labels: bool, image: int | None = None
) -> Batch:
    """Return a full batch for a model of transformers, or raise OptionError.

    `batch` are rows, and `length` the tokens of each; samples where the model takes raw sound. `image` is the
    side of an image in pixels, where the model takes any size.
    """
    # PEFT's adapters hide the arguments of `forward`.
    model = getattr(model, "get_base_model", lambda: model)()
    names = getattr(model, "main_input_name", "input_ids")
    name = names[0] if isinstance(names, list) else names
    parameters = inspect.signature(model.forward).parameters
    if name not in KNOWN:
        message = f"{type(model).__name__} takes {name!r}; forecasts support {', '.join(KNOWN)}"
        raise OptionError(message)
    # CLIP gets images and sounds beside the text; in other models tokens of the text stand for them.
    is_paired = "return_loss" in parameters
    parts = ("text_config", "thinker_config", "vision_config", "audio_config")
    is_composite = "input_ids" in parameters and any(hasattr(model.config, part) for part in parts)
    reads_media = is_composite and not is_paired
    media = _media(model, parameters, batch, image) if reads_media else Media({})
    text = _Text(model, parameters, batch, length, media)
    tensors: dict[str, Any] = {}
    if name == "input_ids" or is_composite:
        tensors |= text.inputs()
    else:
        tensors[name] = _main(model, name, batch, length, image)
        if "input_ids" in parameters and parameters["input_ids"].default is inspect.Parameter.empty:
            tensors |= text.inputs()
    tensors |= media.given
    for media_name in {"pixel_values", "input_features"} & parameters.keys() if is_paired else ():
        tensors[media_name] = _main(model, media_name, batch, length, image)
    if with_labels:
        tensors |= _labels(parameters, model.config, type(model).__name__, batch, text)
    elif getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in parameters:
        tensors["decoder_input_ids"] = text.ids(1)
    is_sound = name == "input_values" and tensors[name].dim() == 2
    return Batch(tensors, tuple(text.notes), text.has_rows or is_sound)


def parts_not_run(model: Any) -> dict[str, str]:
    """Return the classes of sub-models by name; a hook removes each when it runs.

    The video part of a model that reads images and text, for example, gets nothing from `batch_for`.
    """
    waiting: dict[str, str] = {}
    for name, module in model.named_modules():
        is_model = hasattr(module, "main_input_name") and hasattr(module, "config")
        if name and is_model and next(module.parameters(), None) is not None:
            waiting[name] = type(module).__name__
            module.register_forward_pre_hook(partial(_has_run, waiting, name))
    return waiting


def _has_run(waiting: dict[str, str], name: str, *_: Any) -> None:
    # The sub-models around it run too, even if they were not called: peft bypasses their `__call__`.
    for other in [other for other in waiting if f"{name}.".startswith(f"{other}.")]:
        del waiting[other]


class _Text:
    """Rows of tokens; those for images and sounds come first."""

    def __init__(
        self, model: Any, takes: Mapping[str, Any], batch: int, length: int, media: Media
    ) -> None:
        self._config, self._takes, self._batch, self._media = model.config, takes, batch, media
        self.notes: list[str] = []
        self.has_rows = False  # whether `ids` has made any
        needed = media.tokens
        self.length = max(length, needed + LEAST_TEXT) if needed else length
        if media.text:
            space = f"{needed:,} tokens of {self.length:,}" if needed else "beside the text"
            self.notes.append(f"Assumed: {media.text} ({space}).")
        if self.length > length:
            self.notes.append(
                f"Rows are longer than {length:,} tokens, since the image or sound needs more."
            )
        positions = positions_of(model.config)
        if "input_ids" not in takes or positions is None:
            return
        if "return_loss" in takes and length > positions:
            self.length = positions
            self.notes.append(f"Texts are {positions} tokens long, the most that the model takes.")
        elif (
            self.length > positions
            and getattr(model, "main_input_name", "input_ids") == "input_ids"
        ):
            raise OptionError(
                f"{type(model).__name__} has {positions} positions, so a length of {self.length} is too "
                f"long; give at most {positions}"
            )

    def inputs(self) -> dict[str, Any]:
        """Return the tokens, their mask, and their kinds: 0 for text, 1 for images and sounds."""
        ids = self.ids(self.length)
        kinds = torch.zeros(self._batch, self.length, dtype=torch.int64)
        start, end = getattr(self._config, "vision_start_token_id", None), 1 + self._media.tokens
        if self._media.tokens and self._has(start):
            ids[:, 0] = start
        ids[:, 1:end] = self._media.token
        kinds[:, 1:end] = 1
        inputs = {"input_ids": ids}
        takes_any = any(each.kind is each.VAR_KEYWORD for each in self._takes.values())
        if takes_any or "attention_mask" in self._takes:
            inputs["attention_mask"] = torch.ones_like(ids)
        if "mm_token_type_ids" in self._takes:
            inputs["mm_token_type_ids"] = kinds
        if self._media.text and "token_type_ids" in self._takes:
            inputs["token_type_ids"] = kinds.clone()
        return inputs

    def ids(self, *lengths: int) -> torch.Tensor:
        """Return rows of a token without a special meaning, with the end of text as the last one."""
        special = {
            value
            for part in (self._config, _text_config(self._config))
            for key, value in vars(part).items()
            if key.endswith(("token_id", "token_index")) and isinstance(value, int)
        }
        usual = next(token for token in range(3, 1 << 10) if token not in special)
        ids = torch.full((self._batch, *lengths), usual)
        self.has_rows |= any(length > 1 for length in lengths)
        end = getattr(_text_config(self._config), "eos_token_id", None)
        if lengths and lengths[-1] > 1 and self._has(end):
            ids[..., -1] = end
        return ids

    def _has(self, token: Any) -> bool:
        """Return whether a token is in the vocabulary: after one outside of it, all calls of CUDA fail."""
        count = getattr(_text_config(self._config), "vocab_size", math.inf)
        return isinstance(token, int) and 0 <= token < count


def positions_of(config: Any) -> int | None:
    """Return the most tokens that a row can have; None if the configuration does not say."""
    positions = getattr(_text_config(config), "max_position_embeddings", None)
    return positions if isinstance(positions, int) and positions > 0 else None


def _text_config(config: Any) -> Any:
    config = getattr(config, "thinker_config", config)
    text_config = getattr(config, "text_config", None)
    return config if text_config is None or isinstance(text_config, dict) else text_config


def _main(model: Any, name: str, batch: int, length: int, image: int | None) -> torch.Tensor:
    config = model.config
    if name == "pixel_values":
        shape: tuple[int, ...] = (batch, *image_shape(config, image))
        if getattr(config, "num_frames", None) and not hasattr(config, "text_config"):
            shape = (batch, int(config.num_frames), *shape[1:])
    elif name == "input_features" or hasattr(config, "time_stride"):  # a spectrum, in AST too
        shape = (batch, *sound_frames(config))
    else:
        shape = (batch, length)
    return torch.empty(shape, dtype=model.dtype, device="meta")


def _labels(
    takes: Mapping[str, Any], config: Any, name: str, batch: int, text: _Text
) -> dict[str, Any]:
    if "return_loss" in takes:
        return {"return_loss": True}
    if "start_positions" in takes:
        ones = _ones(batch)
        return {"start_positions": ones, "end_positions": ones}
    if "labels" not in takes:
        is_pair = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes
        return {"decoder_input_ids": text.ids(text.length)} if is_pair else {}
    if name.endswith(("SequenceClassification", "ImageClassification", "NextSentencePrediction")):
        is_multiple = getattr(config, "problem_type", None) == "multi_label_classification"
        shape = (batch, config.num_labels) if is_multiple else (batch,)
        is_float = is_multiple or config.num_labels == 1
        return {"labels": torch.empty(shape, device="meta") if is_float else _ones(*shape)}
    longest = getattr(config, "max_target_positions", None) or text.length
    if name.endswith("CTC"):
        # A letter for every two frames of 20 ms at 16 kHz: 640 samples.
        longest = max(1, text.length // 640)
    heads = ("CTC", "ConditionalGeneration", "EncoderDecoderModel", "LM", "TokenClassification")
    if "input_ids" in takes or name.endswith(heads):
        labels = text.ids(min(text.length, longest))
        return {"labels": labels * 0 if name.endswith("TokenClassification") else labels}
    return {}  # labels of images, such as boxes and masks, follow no rule: without them there is no loss

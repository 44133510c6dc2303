"""A batch on the meta device, as a model's own processor and collator would make it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.dry_run import undisturbed
from hfmem_widget.features.fit.foreign import foreign
from hfmem_widget.features.fit.known import spread
from hfmem_widget.features.fit.media import Media, image_shape, of_images, of_sound, sound_frames
from hfmem_widget.text import plain

KNOWN = ("input_ids", "pixel_values", "input_features", "input_values")

CANNOT_RUN = "cannot run on PyTorch's meta device, so its activations are unknown"

_PARTS = ("text_config", "thinker_config", "vision_config", "audio_config")

SAMPLES_A_LETTER = 640  # of raw sound

LEAST_TEXT = 16  # tokens that are left for text beside those of an image


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch: called, it makes one on the meta device.

    Whole numbers in `given` are on the host and have their values; the rest has shapes alone.
    """

    given: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    def __call__(self) -> dict[str, Any]:
        """Return the batch."""
        return {
            name: spread(one) if isinstance(one, torch.Tensor) else one
            for name, one in self.given.items()
        }


def batch_for(
    model: Any, batch: int, length: int, *, with_labels: bool, image: int | None = None
) -> Batch:
    """Return a full batch for a model of transformers, or raise OptionError.

    `batch` are rows, and `length` the tokens of each; samples where the model takes raw sound. `image` is the
    side of an image in pixels, where the model takes any size.
    """
    names = getattr(model, "main_input_name", "input_ids")
    name = names[0] if isinstance(names, list) else names
    takes = inspect.signature(model.forward).parameters
    if name not in KNOWN:
        message = f"{type(model).__name__} takes {name!r}; forecasts support {', '.join(KNOWN)}"
        raise OptionError(message)
    # In CLIP images and sounds go beside the text; elsewhere into it, where tokens stand for them.
    is_paired = "return_loss" in takes
    is_composite = "input_ids" in takes and any(hasattr(model.config, part) for part in _PARTS)
    media = _media(model, takes, batch, image) if is_composite and not is_paired else []
    text = _Text(model, takes, batch, length, media)
    given: dict[str, Any] = {}
    if name == "input_ids" or is_composite:
        given |= text.inputs()
    else:
        given[name] = _main(model, name, batch, length, image)
        if "input_ids" in takes and takes["input_ids"].default is inspect.Parameter.empty:
            given |= text.inputs()
    for one in media:
        given |= one.given
    for beside in {"pixel_values", "input_features"} & takes.keys() if is_paired else ():
        given[beside] = _main(model, beside, batch, length, image)
    if with_labels:
        given |= _labels(takes, model.config, type(model).__name__, batch, text)
    elif getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        given["decoder_input_ids"] = text.ids(1)
    return Batch(given, tuple(text.notes))


def _media(model: Any, takes: Mapping[str, Any], batch: int, image: int | None) -> list[Media]:
    """Return the image or the sound of each row of a model that reads it with the text."""
    with foreign(f"{plain(type(model).__name__)} {CANNOT_RUN}"), undisturbed():
        if "pixel_values" in takes:
            return [of_images(model, takes, batch, image)]
        if "input_features" in takes:
            return [of_sound(model, takes, batch)]
    return []


def idle(model: Any) -> dict[str, str]:
    """Return the classes of sub-models by their names, from which each is removed when it runs, by a hook.

    The part for video of a model that reads images and text, for example, gets nothing from `batch_for`.
    """
    waiting: dict[str, str] = {}
    for name, module in model.named_modules():
        is_model = hasattr(module, "main_input_name") and hasattr(module, "config")
        if name and is_model and next(module.parameters(), None) is not None:
            waiting[name] = type(module).__name__
            module.register_forward_pre_hook(partial(_ran, waiting, name))
    return waiting


def _ran(waiting: dict[str, str], name: str, *_: Any) -> None:
    # What contains it runs too, even where it was not called: peft bypasses its `__call__`.
    for other in [other for other in waiting if f"{name}.".startswith(f"{other}.")]:
        del waiting[other]


class _Text:
    """Rows of tokens, with those that stand for images and sounds at their beginning."""

    def __init__(
        self, model: Any, takes: Mapping[str, Any], batch: int, length: int, media: list[Media]
    ) -> None:
        self._config, self._takes, self._batch, self._media = model.config, takes, batch, media
        self.notes: list[str] = []
        needed = sum(one.tokens for one in media)
        self.length = max(length, needed + LEAST_TEXT) if needed else length
        for one in media:
            taken = f"{one.tokens:,} tokens of {self.length:,}" if one.tokens else "beside the text"
            self.notes.append(f"Assumed: {one.text} ({taken}).")
        if self.length > length:
            self.notes.append(
                f"Rows are longer than {length:,} tokens, since the image or sound needs more."
            )
        config = _text_config(model.config)
        positions = getattr(config, "max_position_embeddings", None)
        if "input_ids" not in takes or not isinstance(positions, int) or positions <= 0:
            return
        if "return_loss" in takes and length > positions:
            self.length = positions
            self.notes.append(
                f"Texts are {positions} tokens long, which is all that the model takes."
            )
        elif (
            self.length > positions
            and getattr(model, "main_input_name", "input_ids") == "input_ids"
        ):
            message = (
                f"{type(model).__name__} has {positions} positions, so a length of {self.length} is too "
                f"long; give at most {positions}"
            )
            raise OptionError(message)

    def inputs(self) -> dict[str, Any]:
        """Return the text, its mask, and which tokens are no text."""
        ids = self.ids(self.length)
        kinds = torch.zeros(self._batch, self.length, dtype=torch.int64)
        at = 1
        start = getattr(self._config, "vision_start_token_id", None)
        for one in self._media:
            if isinstance(start, int) and one.tokens:
                ids[:, at - 1] = start
            ids[:, at : at + one.tokens] = one.token
            kinds[:, at : at + one.tokens] = 1
            at += one.tokens
        made = {"input_ids": ids}
        takes_any = any(each.kind is each.VAR_KEYWORD for each in self._takes.values())
        if takes_any or "attention_mask" in self._takes:
            made["attention_mask"] = torch.ones_like(ids)
        if "mm_token_type_ids" in self._takes:
            made["mm_token_type_ids"] = kinds
        if self._media and "token_type_ids" in self._takes:
            made["token_type_ids"] = kinds.clone()
        return made

    def ids(self, *lengths: int) -> torch.Tensor:
        """Return rows of a token that means nothing special, the last one at the end of the text."""
        special = {
            value
            for part in (self._config, _text_config(self._config))
            for key, value in vars(part).items()
            if key.endswith(("token_id", "token_index")) and isinstance(value, int)
        }
        usual = next(token for token in range(3, 1 << 10) if token not in special)
        ids = torch.full((self._batch, *lengths), usual)
        text = _text_config(self._config)
        end, count = getattr(text, "eos_token_id", None), getattr(text, "vocab_size", math.inf)
        if isinstance(end, int) and 0 <= end < count and lengths and lengths[-1] > 1:
            ids[..., -1] = end
        return ids


def _text_config(config: Any) -> Any:
    config = getattr(config, "thinker_config", config)
    found = getattr(config, "text_config", None)
    return config if found is None or isinstance(found, dict) else found


def _main(model: Any, name: str, batch: int, length: int, image: int | None) -> torch.Tensor:
    config = model.config
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    if name == "pixel_values":
        shape: tuple[int, ...] = (batch, *image_shape(config, image))
        if getattr(config, "num_frames", None) and not hasattr(config, "text_config"):
            shape = (batch, int(config.num_frames), *shape[1:])
    elif name == "input_features":
        shape = (batch, *sound_frames(config))
    else:
        shape = (batch, length)
    return torch.empty(shape, dtype=dtype, device="meta")


def _labels(
    takes: Mapping[str, Any], config: Any, name: str, batch: int, text: _Text
) -> dict[str, Any]:
    if "return_loss" in takes:
        return {"return_loss": True}
    if "start_positions" in takes:
        ones = torch.ones(batch, dtype=torch.int64)
        return {"start_positions": ones, "end_positions": ones}
    if "labels" not in takes:
        is_pair = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes
        return {"decoder_input_ids": text.ids(text.length)} if is_pair else {}
    if name.endswith(("SequenceClassification", "ImageClassification", "NextSentencePrediction")):
        return {"labels": _classes(config, batch)}
    longest = getattr(config, "max_target_positions", None) or text.length
    if name.endswith("CTC"):
        # A letter for every two frames of 20 ms at 16 kHz.
        longest = max(1, text.length // SAMPLES_A_LETTER)
    heads = ("CTC", "ConditionalGeneration", "EncoderDecoderModel", "LM", "TokenClassification")
    if "input_ids" in takes or name.endswith(heads):
        labels = text.ids(min(text.length, longest))
        return {"labels": labels * 0 if name.endswith("TokenClassification") else labels}
    return {}  # labels of pictures, such as boxes and masks, follow no rule: without them there is no loss


def _classes(config: Any, batch: int) -> torch.Tensor:
    if getattr(config, "problem_type", None) == "multi_label_classification":
        return torch.empty(batch, config.num_labels, device="meta")
    if config.num_labels == 1:
        return torch.empty(batch, device="meta")
    return torch.ones(batch, dtype=torch.int64)

"""The model of a watched training: the live one, or one made again from a recording.

A recording keeps its class of transformers, its configuration and how it was trained: no weights, data or
paths.
"""

import json
import sys
import weakref
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.beside import live_model, others_that_ran
from hfmem_widget.features.fit.room import rooms
from hfmem_widget.features.fit.setting import PRECISIONS, errors_as
from hfmem_widget.monitor.batch import SeenBatch, seen_batch
from hfmem_widget.ranks.identity import rank_in_group
from hfmem_widget.session import Session
from hfmem_widget.sources.libraries import has_buckets, replicas_of
from hfmem_widget.text import plain

MOST_OF_CONFIG: Final = 64 * 1024
"""Characters of a configuration as JSON; a longer one is not kept."""

MOST_NAMES: Final = 2048  # of trained weights
LONGEST_NAME: Final = 64  # characters of a value of a configuration
LARGEST: Final = 2**53  # the largest number in a configuration

LEFT_OUT: Final = frozenset(
    {"auto_map", "dtype", "id2label", "label2id", "quantization_config", "task_specific_params"}
)

NO_REPLICAS: Final = "nn.DataParallel has no forecast"

CANNOT: Final = "What would fit cannot be worked out: "


@dataclass(frozen=True, slots=True)
class Subject:
    """A trained model, and all other data that its dry runs need."""

    model: Any
    optimizer: Any
    seen: SeenBatch | None
    ran: Mapping[str, Any]  # fields of its setting
    available: Mapping[str, float]  # free bytes by device, now or when its watch ended
    is_compiled: bool = False
    replicas: int = 1  # GPUs of ``nn.DataParallel``


def live(session: Session) -> Subject:
    """Return the model that was trained in a session, or raise OptionError."""
    live, optimizer = live_model(session)
    from hfmem_widget.features.fit.backward import is_checkpointed  # they need torch
    from hfmem_widget.features.fit.liger import has_liger
    from hfmem_widget.features.fit.on_meta import uncompiled
    from hfmem_widget.features.fit.predict import precision_of_accelerate

    model = uncompiled(live)
    seen = seen_batch(model, is_training=True)
    replicas = max(map(replicas_of, (model, seen and seen.model())))
    model = model.module if replicas_of(model) > 1 else model
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise OptionError("the model is spread over several devices")
    # Accelerate's autocast is within the model's call, and that of a loop around it.
    autocast = seen.autocast if seen else ""
    ran: dict[str, Any] = {"precision": autocast or precision_of_accelerate()}
    ran["checkpointing"] = is_checkpointed(model)
    ran["optimizer"] = type(optimizer).__name__
    ran["liger"] = has_liger(model)
    ran["shards"] = _shards_of(model, checkpointing=ran["checkpointing"])
    free = {room.device: room.available for room in rooms()[0] if room.available >= 0}
    is_compiled = uncompiled(live) is not live
    return Subject(model, optimizer, seen, ran, free, is_compiled, replicas)


def _shards_of(model: Any, *, checkpointing: bool) -> str:
    """Return how ranks train a model, as in a `Setting`; empty for one process, an OptionError if unknown."""
    _, world = rank_in_group() or (0, 1)
    if world == 1:
        return ""
    from hfmem_widget.monitor.shared import shared_monitor

    for ddp in filter(has_buckets, shared_monitor().attribution.subjects.all()[0]):
        keeps = ddp.find_unused_parameters and not ddp.static_graph  # then its buckets stay
        is_known = keeps or checkpointing or ddp.device.type == "cpu"
        is_usual = not (ddp.gradient_as_bucket_view or ddp.mixed_precision or ddp._comm_hooks)  # noqa: SLF001  (no public way)
        if is_known and is_usual and any(each is model for each in ddp.modules()):
            return f"ddp:{world}"
    raise OptionError(
        "of several ranks only those of DistributedDataParallel with its usual options are supported"
    )


def has_ranks() -> bool:
    """Return whether this process is one of several ranks."""
    _, world = rank_in_group() or (0, 1)
    return world > 1


def recipe_of_live(session: Session) -> dict[str, Any]:
    """Return a live training as plain data for dry runs elsewhere, or the reason for none, as "refused"."""
    try:
        with errors_as("the model cannot be recorded"):
            trained = live(session)
            return {**_recipe(trained), "others": others_that_ran(session, trained.model)}
    except OptionError as error:
        return {"refused": str(error)}


def _recipe(trained: Subject) -> dict[str, Any]:
    from hfmem_widget.features.fit.on_meta import main_type
    from hfmem_widget.features.fit.optimizers import kind_of

    model, lora = trained.model, None
    if trained.is_compiled or getattr(model, "_compiled_call_impl", None):
        raise OptionError("the model was compiled")
    if trained.replicas > 1:
        raise OptionError(NO_REPLICAS)
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    if base is not model:
        [adapters] = model.peft_config.values()
        layers = adapters.target_modules
        if adapters.peft_type != "LORA" or isinstance(layers, str):
            raise OptionError("adapters other than LoRA in named layers are not recorded")
        lora = [adapters.r, sorted(layers), float(adapters.lora_dropout)]
    name, config = type(base).__name__, getattr(base, "config", None)
    if getattr(sys.modules.get("transformers"), name, None) is not type(base) or config is None:
        raise OptionError(f"{plain(name)} is not a class of transformers")
    if getattr(config, "quantization_config", None) is not None:
        raise OptionError("the weights are quantised")
    kept = _kept(config.to_dict())
    if len(json.dumps(kept)) > MOST_OF_CONFIG:
        raise OptionError("the configuration is longer than 64 kB")
    weights = list(model.named_parameters())
    names = [own for own, each in weights if each.requires_grad]
    if lora or len(names) == len(weights):
        names = []
    if len(names) > MOST_NAMES:
        raise OptionError(f"more than {MOST_NAMES} weights were chosen to be trained")
    seen = trained.seen
    batch = seen and {
        "rows": seen.rows,
        "length": seen.length,
        "given": {
            name: value if isinstance(value, bool) else [list(value[0]), str(value[1])[6:]]
            for name, value in seen.given.items()
        },
    }
    return {
        "model": name,
        "config": kept,
        "attention": str(getattr(config, "_attn_implementation", None) or ""),
        "dtype": str(main_type(model)).removeprefix("torch."),
        "size": _size_of(model),
        "lora": lora,
        "trained": names,
        "optimizer": asdict(kind_of(trained.optimizer)),
        "precision": trained.ran["precision"],
        "checkpointing": trained.ran["checkpointing"],
        "liger": trained.ran["liger"],
        "shards": trained.ran["shards"],
        "batch": batch,
        "available": trained.available,
    }


def made_again(recipe: Mapping[str, Any]) -> Subject:
    """Return the subject of a recording's training, on the meta device, or raise OptionError."""
    try:
        return _made(recipe)
    except OptionError as error:
        raise OptionError(f"{CANNOT}{error}") from None


def _made(recipe: Mapping[str, Any]) -> Subject:
    if not recipe or "refused" in recipe:
        no_model = "the recording has no model to try it with"
        raise OptionError(plain(recipe.get("refused", no_model), 300))
    from hfmem_widget.features.fit import on_meta
    from hfmem_widget.features.fit.optimizers import Kind
    from hfmem_widget.features.fit.sharding import parsed

    with errors_as("the recorded model cannot be made again"):
        config = on_meta.config_of(_kept(recipe["config"]))
        config.architectures = [recipe["model"]]
        if recipe["attention"] == "eager":
            config._attn_implementation = "eager"  # noqa: SLF001  (as transformers keeps it)
        dtype = on_meta.dtype_of(recipe["dtype"])
        model = on_meta.from_config(config, dtype, for_training=True)
        if recipe["checkpointing"]:
            on_meta.enable_checkpointing(model)
        is_same = type(model).__name__ == recipe["model"]
        if recipe["lora"]:
            rank, layers, dropout = recipe["lora"]
            model = on_meta.with_lora(model, int(rank), map(str, layers), dropout=float(dropout))
        elif names := frozenset(recipe["trained"]):
            for name, parameter in model.named_parameters():
                parameter.requires_grad_(name in names)
        if not is_same or _size_of(model) != list(recipe["size"]):
            raise OptionError("the model is not what its configuration describes")
        batch = recipe["batch"]
        seen = batch and SeenBatch(
            weakref.ref(model),
            {
                name: value
                if isinstance(value, bool)
                else (tuple(value[0]), on_meta.dtype_of(value[1]))
                for name, value in batch["given"].items()
            },
            int(batch["rows"]),
            int(batch["length"]),
        )
        kind = Kind(**recipe["optimizer"])
        precision = recipe["precision"] if recipe["precision"] in PRECISIONS else "fp32"
        ran = {"precision": precision, "optimizer": plain(kind.name)}
        ran["checkpointing"] = bool(recipe["checkpointing"])
        ran["liger"] = bool(recipe.get("liger"))
        if shards := str(recipe.get("shards", "")):
            ran["shards"] = f"ddp:{parsed(shards)[1]}"
        return Subject(model, kind, seen, ran, dict(recipe["available"]))


def _size_of(model: Any) -> list[int]:
    """Return the counts of weights and of trained weights, and the bytes, each storage once."""
    from hfmem_widget.features.fit.on_meta import storages

    weights = list(storages(model.parameters()))
    return [
        sum(weight.numel() for weight in weights),
        sum(weight.numel() for weight in weights if weight.requires_grad),
        sum(weight.nbytes for weight in weights),
    ]


def _kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that decide a model's shapes: no names of files and labels, and no downloads."""
    kept = {
        str(name): _kept(value) if isinstance(value, Mapping) else value
        for name, value in config.items()
        if not str(name).startswith("_") and name not in LEFT_OUT and _is_kept(value)
    }
    if isinstance(labels := config.get("id2label"), Mapping):
        kept["num_labels"] = len(labels)
    if "use_pretrained_backbone" in kept:
        kept["use_pretrained_backbone"] = False
    return kept


def _is_kept(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_NAME and not {"/", "\\"} & set(value)
    if isinstance(value, list | tuple):
        return all(_is_kept(each) and not isinstance(each, Mapping) for each in value)
    if isinstance(value, int | float):
        return abs(value) < LARGEST
    return value is None or isinstance(value, Mapping)

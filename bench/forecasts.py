"""Forecasts of many architectures against a real step of each, beside the estimates of other tools.

Weights and batches are random, and nothing is downloaded. The truth is the allocator's own peak of the third
step of a plain loop with fused AdamW, or of a forward pass. The others are given what they ask for:

- accelerate estimate-memory: its own functions, with Adam; it knows neither batch nor length.
- DeepSpeed: estimate_zero2_model_states_mem_needs without offload (deepspeed/runtime/zero/stage_1_and_2.py),
  4 bytes a parameter and 16 more on one device; it knows no batch.
- hf-mem: weights, and the cache of keys and values of a batch; inference alone.

With ``--small`` the models are small, it runs on the CPU, and tensors are counted as they come and go.
"""

import gc
import inspect
import math
import statistics
import time
from collections.abc import Mapping
from typing import Any, Final

import torch
import transformers
from common import measure
from common.architectures import CASES, Case, built, config_of, loss_of, smaller
from common.checked import Checked
from common.more_architectures import MORE

from hfmem_widget.features.fit.live_bytes import LiveBytes
from hfmem_widget.features.fit.model import Forecast
from hfmem_widget.features.fit.on_meta import from_config
from hfmem_widget.features.fit.predict import predict
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.features.fit.trial import real_batch

STEPS: Final = 3
WORKSPACES: Final = 66 << 20  # of cuBLAS, which may stay from the case before

PEERS: Final = ("accelerate", "DeepSpeed", "hf-mem")
HEAD: Final = (
    *("model", "kind", "precision", "batch", "forecast MiB", "measured MiB", "off"),
    *(f"{name} off" for name in PEERS),
    *("forecast s", "reserved, forecast MiB", "reserved, measured MiB", "reserved off"),
)


def forward(model: Any, given: Mapping[str, Any]) -> Any:
    """Run forward as the first step of `generate` does."""
    takes = inspect.signature(model.forward).parameters
    extra = {"use_cache": True, "logits_to_keep": 1}
    with torch.no_grad():
        return model(**given, **{name: extra[name] for name in extra if name in takes})


def on_gpu(case: Case, config: Any) -> tuple[float, float]:
    """Return the allocator's peak in bytes, and what it has reserved by then."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # noqa: SLF001  (so that each case pays for its own)
    torch.cuda.empty_cache()
    left = max(0, torch.cuda.memory_allocated() - WORKSPACES)
    torch.cuda.reset_peak_memory_stats()
    model, batch = built(case, config, "cuda")
    if not case.options.get("training", True):
        torch.cuda.reset_peak_memory_stats()
        with Checked():
            forward(model, real_batch(batch, "cuda"))
        return float(torch.cuda.max_memory_allocated() - left), float(torch.cuda.memory_reserved())
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        given = real_batch(batch, "cuda")  # a loop has it until the step is over
        with Checked():
            loss = loss_of(case, model, given, "cuda")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss, given
    return float(torch.cuda.max_memory_allocated() - left), float(torch.cuda.memory_reserved())


def on_cpu(case: Case, config: Any) -> tuple[float, float]:
    """Return the peak of tensors that were alive, in bytes, without the optimizer's step."""
    model, batch = built(case, config, "cpu")
    live = LiveBytes(device="cpu")
    live.leave_out([*model.parameters(), *model.buffers()])
    held = sum(one.untyped_storage().nbytes() for one in {*model.parameters(), *model.buffers()})
    given = real_batch(batch, "cpu")
    with live:
        copy = {
            name: one.clone() if isinstance(one, torch.Tensor) else one
            for name, one in given.items()
        }
        if case.options.get("training", True):
            loss = loss_of(case, model, copy, "cpu")
            loss.backward()
        else:
            forward(model, copy)
    return float(held + live.peak), float("nan")


def others(case: Case, config: Any, ours: Forecast) -> dict[str, float]:
    """Return what other tools say, in bytes; NaN where they say nothing."""
    from accelerate.commands.estimate import estimate_training_usage
    from accelerate.utils import calculate_maximum_sizes

    training = case.options.get("training", True)
    size, _ = calculate_maximum_sizes(from_config(config, torch.float32, for_training=training))
    none = float("nan")
    if not training:
        weights = ours.bytes("weights")
        return {
            "accelerate": size / 2,
            "DeepSpeed": none,
            "hf-mem": weights + ours.bytes("kv_cache"),
        }
    precision = "float32" if case.precision == "fp32" else "bfloat16"
    usage = estimate_training_usage(size, precision)
    return {"accelerate": max(usage.values()), "DeepSpeed": 20 * ours.parameters, "hf-mem": none}


def off(figure: float, real: float) -> str:
    """Return by how much a figure is too high, in percent."""
    return "-" if math.isnan(figure / real) else f"{(figure / real - 1) * 100:+.1f} %"


def row(case: Case, errors: list[float], *, small: bool) -> list[str]:
    """Predict and run a case, and return its line of the table."""
    config = config_of(case, small=small)
    training = case.options.get("training", True)
    begun = time.monotonic()
    ours = predict(
        config,
        Setting(
            batch=case.batch,
            length=case.length,
            precision=case.precision,
            optimizer="sgd" if small else "adamw_torch_fused",
            device="cpu" if small else "cuda",
            **case.options,
        ),
    )
    took = time.monotonic() - begun
    real, reserved = (on_cpu if small else on_gpu)(case, config)
    errors.append((ours.total / real - 1) * 100)
    peers = others(case, config, ours)
    return [
        case.name,
        case.group,
        case.precision if training else "bf16, inference",
        f"{case.batch} x {case.length}",
        *(f"{size / 2**20:,.0f}" for size in (ours.total, real)),
        off(ours.total, real),
        *(off(peers[name], real) for name in PEERS),
        f"{took:.1f}",
        *(f"{size / 2**20:,.0f}" for size in (ours.reserved, reserved)),
        off(ours.reserved, reserved),
    ]


def main() -> None:
    """Predict, run and compare every case."""
    parser = measure.cli(__doc__)
    parser.add_argument("--small", action="store_true", help="small models on the CPU")
    parser.add_argument("--only", nargs="*", default=[], metavar="TYPE", help="model types to run")
    arguments = parser.parse_args()
    small = arguments.small
    if not small and not torch.cuda.is_available():
        measure.not_here("a forecast for a GPU is measured on one; --small runs on the CPU.")
    transformers.logging.set_verbosity_error()
    rows: list[list[str]] = []
    errors: list[float] = []
    notes: list[str] = []
    for each in (*CASES, *MORE):
        if arguments.only and each.type not in arguments.only:
            continue
        try:
            case = smaller(each) if small else each
            rows.append(row(case, errors, small=small))
        except Exception as error:  # noqa: BLE001  (one architecture that fails must not end the run)
            notes.append(f"{each.name}: {type(error).__name__}: {str(error)[:200]}")
            if small or answers():
                continue
            notes.append("CUDA does not answer after that, so nothing more was run; see --only.")
            break
        print(" | ".join(rows[-1]), flush=True)
    if errors:
        middle = statistics.median(map(abs, errors))
        notes.append(
            f"{len(errors)} architectures: median error {middle:.2f} %, worst {max(errors, key=abs):+.2f} %, "
            f"lowest {min(errors):+.2f} %."
        )
    where = "CPU, small models" if small else torch.cuda.get_device_name()
    measure.report(
        "Peak of a step, forecast before loading and measured",
        f"{measure.machine('torch', 'transformers', 'accelerate')}; {where}",
        HEAD,
        rows,
        notes=notes,
        json_to=arguments.json,
    )


def answers() -> bool:
    """Return whether the GPU can still be used: after an assertion on it, no call of CUDA works."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


if __name__ == "__main__":
    main()

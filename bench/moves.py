"""Out-of-memory errors of many models and causes, and what the first change that is said to fit takes.

Each case is a notebook in a kernel of its own, on a GPU of which it may have only some GiB: the cells of a
user who loads a model and trains it, evaluates it or generates with it, until memory runs out. The first
change on the card that fits is written by ``%memfit --write`` (fewer sequences at a time are cut by hand),
the new cell runs, and the allocator's own peak is compared with the peak that the card promised. Where that
says that the result stays the same, losses are compared with those of the same cells without the limit.

Models have random weights, and nothing is downloaded. With ``--small`` the models are small and run on the
CPU, where a hook fails once: that shows all but the peaks.
"""

import argparse
import json
import math
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from common.moves_cases import CASES, SMALL, Case
from jupyter_client.manager import start_new_kernel

ONE_REFERENCE: Final = threading.Lock()
"""Held by the case that trains without a limit: several would not fit beside each other."""

SETS_UP = """
import gc, json, torch, transformers
from transformers import Trainer, TrainingArguments, {kind}, {config}
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.manual_seed(0)
{kind}({config}(**{own})).save_pretrained("model")
"""
LIMITS = "torch.cuda.set_per_process_memory_fraction({gib} * 2**30 / torch.cuda.mem_get_info()[1])"
FAILS = """
def fails(_module, args, given):
    first = next(iter(given.values())) if given else args[0]
    if not failed:
        failed.append(None)
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried to allocate 1125899906842624 bytes. Error code 12 (Cannot allocate memory)")
failed = []
handle = torch.nn.Module.register_forward_pre_hook(model, fails, with_kwargs=True)
"""
MODEL = 'model = {kind}.from_pretrained("model")'
ADAPTERS = """
from peft import LoraConfig, get_peft_model
model = get_peft_model(model, LoraConfig(r=16))"""
DATA = """
generator = torch.Generator().manual_seed(0)
def row():
    return {row}
rows = [row() for _ in range({count})]
"""
ARGUMENTS = """
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size={rows},
    max_steps=3,
    learning_rate=1e-5,
    logging_steps=1,
    report_to="none",
    disable_tqdm=True,
    save_strategy="no",{options}
)
"""
TRAINER = "trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows{more})"
PROMPTS = """
torch.manual_seed(0)
prompts = torch.randint(10, 500, ({rows}, {tokens}){place})
"""
MOVES = """
from hfmem_widget.features.fit.beside import LastTraining
from hfmem_widget.monitor.process import process_state
_session = process_state(LastTraining).session
_moves = [
    {"name": each.name, "peak": each.peak, "low": each.low, "high": each.high, "fits": each.fits,
     "cost": each.cost, "rows": each.batch, "changes": len(each.changes)}
    for each in (_session.moves if _session else ())
]
_causes = [each.evidence.get("cause") for each in (_session.findings if _session else ())]
print(json.dumps([_moves, _causes]))
"""
PEAK = "print(json.dumps(torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0))"
RESETS = "gc.collect(); torch.cuda.is_available() and torch.cuda.reset_peak_memory_stats()"
LOSSES = """
print(json.dumps([each[key] for each in trainer.state.log_history
    for key in ("loss", "eval_loss") if key in each]))
"""


class Notebook:
    """A kernel in which cells run one after the other."""

    def __init__(self, folder: str) -> None:
        self._manager, self._client = start_new_kernel(kernel_name="python3", cwd=folder)

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, cell: str, *, may_fail: bool = False) -> tuple[Any, str, dict[str, Any]]:
        """Run a cell; return its last line of text as JSON, its error, and the reply."""
        printed: list[str] = []

        def hear(message: Any) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        reply = self._client.execute_interactive(cell, timeout=240, output_hook=hear)["content"]
        error = f"{reply['ename']}: {reply['evalue']}"[:300] if reply["status"] == "error" else ""
        if error and not may_fail:
            raise RuntimeError(f"{error}\n{cell}")
        lines = "".join(printed).strip().splitlines()
        try:
            return json.loads(lines[-1]), error, reply
        except (IndexError, ValueError):
            return None, error, reply


def row_of(case: Case) -> str:
    """Return the code of one row."""
    ids = f"torch.randint(10, 500, ({case.tokens},), generator=generator)"
    if "Image" in case.kind:
        given = {"pixel_values": "torch.rand(3, 224, 224, generator=generator)"}
    elif "Whisper" in case.kind:
        given = {"input_features": "torch.rand(80, frames, generator=generator)"}
    else:
        given = {"input_ids": "ids", "attention_mask": "torch.ones_like(ids)"}
    label = "torch.randint({}, {}, generator=generator)"
    labels = {"ids": "ids.clone()", "row": label.format(2, "()"), "token": "ids % 2"}
    given["labels"] = labels.get(case.labels, label.format("10, 500", f"({case.labels},)"))
    items = ", ".join(f'"{name}": {value}' for name, value in given.items())
    return f"(ids := {ids}) is not None and {{{items}}}"


def cells_of(case: Case, *, small: bool) -> list[str]:
    """Return the cells of a user, up to the one that runs out of memory, which is the last."""
    own = {name: SMALL.get(name, value) if small else value for name, value in case.own.items()}
    if small:
        own |= {} if "Image" in case.kind else {"vocab_size": 512, "pad_token_id": 0}
    options = {**case.options, **({"use_cpu": True} if small else {})}
    written = "".join(f"\n    {name}={value!r}," for name, value in options.items())
    model = MODEL.format(kind=case.kind) + (ADAPTERS if case.lora else "")
    frames = 2 * own.get("max_source_positions", 1500)
    setting = {"rows": case.rows, "tokens": case.tokens, "gib": case.gib, "kind": case.kind}
    head = (
        SETS_UP.format(config=case.configuration, own=repr(own), **setting) + f"frames = {frames}"
    )
    limit = "" if small else LIMITS.format(**setting)
    fails = FAILS.format(**setting) if small else ""
    if case.generate:
        place = "" if small else ', device="cuda"'
        arguments = "".join(f", {name}={value}" for name, value in case.generate.items())
        moved = model if small else f'{model}.to("cuda")'
        return [
            head,
            limit,
            moved + fails,
            PROMPTS.format(place=place, **setting),
            f"%%memwatch\nmade = model.generate(prompts{arguments}, pad_token_id=0, eos_token_id=-1)",
        ]
    count = case.count or 3 * case.rows * case.options.get("gradient_accumulation_steps", 1)
    more = ", compute_metrics=lambda _: {}" if case.cause == "predictions" else ""
    return [
        head,
        limit,
        model + fails,
        DATA.format(row=row_of(case), count=count),
        ARGUMENTS.format(options=written, **setting),
        TRAINER.format(more=more),
        f"%%memwatch\n{case.run}",
    ]


def tried(case: Case, *, small: bool) -> dict[str, Any]:
    """Return what was promised and what came of it."""
    began = time.monotonic()
    result: dict[str, Any] = {"model": case.name, "cause": case.cause}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        notebook = Notebook(folder)
        try:
            result |= _tried(notebook, case, small=small)
        except (RuntimeError, TimeoutError) as error:
            result["problem"] = str(error)
        finally:
            notebook.close()
    return result | {"seconds": round(time.monotonic() - began, 1)}


def _tried(notebook: Notebook, case: Case, *, small: bool) -> dict[str, Any]:
    *cells, last = cells_of(case, small=small)
    for cell in ("%load_ext hfmem_widget", *cells):
        notebook.run(cell)
    _, error, _ = notebook.run(last, may_fail=True)
    if not error:
        return {"problem": "memory did not run out"}
    (moves, causes), _, _ = notebook.run(MOVES)
    result: dict[str, Any] = {"error": error, "moves": moves, "causes": causes}
    first = next((at for at, move in enumerate(moves, 1) if move["fits"]), 0)
    if not first:
        return {**result, "problem": "nothing is said to fit"}
    move = moves[first - 1]
    if move["changes"]:
        _, _, reply = notebook.run(f"%memfit --write {first}")
        text = next(each["text"] for each in reply["payload"] if each["source"] == "set_next_input")
    else:  # fewer sequences at a time
        text = f"%%memwatch\n%memholders --free errors\n{last.partition(chr(10))[2]}"
        text = text.replace("generate(prompts", f"generate(prompts[:{move['rows']}]")
    notebook.run("%memholders --free errors")
    notebook.run(RESETS)
    # What the cell frees first, as a model that it makes anew, is not in its training's peak.
    text = re.sub("(?m)^(%memholders --free .*)$", rf"\1\n{RESETS}", text)
    _, error, _ = notebook.run(text, may_fail=True)
    peak, _, _ = notebook.run(PEAK)
    result |= {"move": move, "written": text, "failed": error, "measured": peak}
    if move["cost"] == "" and not case.generate and not error:
        after, _, _ = notebook.run(LOSSES)
        with ONE_REFERENCE:
            notebook.run("del model, trainer; gc.collect()")
            notebook.run("" if small else LIMITS.format(gib=60))
            for cell in cells[2:]:
                notebook.run(cell.replace("failed = []", "failed = [None]"))
            notebook.run(last)
            before, _, _ = notebook.run(LOSSES)
            notebook.run("del model, trainer; gc.collect(); torch.cuda.empty_cache()")
        result["losses"] = [before, after]
    return result


def off(result: Mapping[str, Any]) -> float:
    """Return by how many per cent the promise is above what was measured."""
    if not result.get("measured") or result.get("failed"):
        return math.nan
    return 100 * (result["move"]["peak"] / result["measured"] - 1)


def differs(result: Mapping[str, Any]) -> float:
    """Return by how many per cent losses differ at most; NaN where nothing was promised."""
    before, after = result.get("losses", ((), ()))
    return max(
        (100 * abs(b / a - 1) for a, b in zip(before, after, strict=False)), default=math.nan
    )


def main() -> None:
    """Run the cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    wanted = [
        case
        for case in CASES
        if not arguments.only or any(part in f"{case.name} {case.cause}" for part in arguments.only)
    ]
    results = []
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for result in pool.map(lambda case: tried(case, small=arguments.small), wanted):
            results.append(result)
            move = result.get("move", {})
            print(
                f"{result['model']} | {result['cause']} | {move.get('name', '')} | "
                f"{move.get('peak', 0) / 2**20:,.0f} | {result.get('measured', 0) / 2**20:,.0f} | "
                f"{off(result):+.1f} | {differs(result):.3f} | "
                f"{result.get('problem') or result.get('failed') or ''} | {result['seconds']}",
                flush=True,
            )
            if arguments.output:
                arguments.output.write_text(json.dumps(results, indent=1))
    known = [value for value in map(off, results) if not math.isnan(value)]
    if known:
        print(
            f"median {statistics.median(map(abs, known)):.2f} %, {min(known):+.2f} to {max(known):+.2f} %"
        )


if __name__ == "__main__":
    main()

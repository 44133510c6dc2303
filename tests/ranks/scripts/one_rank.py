"""Two ranks that accelerate wraps; the first writes its peak of tensors: ``one_rank.py FILE WAY``."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType

from hfmem_widget.features.fit.live_bytes import LiveBytes

path, way = sys.argv[1:]
plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2, auto_wrap_policy="transformer_based_wrap", cpu_ram_efficient_loading=False
)
accelerator = Accelerator(cpu=True, fsdp_plugin=plugin if way == "fsdp" else None)
if way == "fsdp":  # which accelerate has for GPUs alone
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
torch.manual_seed(0)
values: dict[str, Any] = json.loads(Path(path).read_text("utf-8"))
config = transformers.Qwen2Config(**values)
with LiveBytes(device="cpu") as live:
    model = transformers.Qwen2ForCausalLM(config)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    for step in range(3):
        if step == 1:
            live.restart()
        ids = torch.randint(3, 100, (2, 64))
        loss = model(input_ids=ids, labels=ids).loss
        accelerator.backward(loss)
        del loss
        optimizer.step()
        optimizer.zero_grad()
if accelerator.is_main_process:
    Path(path).with_suffix(".peak").write_text(str(live.peak))
torch.distributed.destroy_process_group()

"""One of two ranks of a Trainer, which wraps the model by itself: ``trainer_buffers.py FOLDER``."""

import json
import sys
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

import hfmem_widget


class Net(torch.nn.Module):  # type: ignore[misc]  # torch has no types for it
    """A model with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        return {"loss": (self.layer(x) - labels).square().mean()}


folder = Path(sys.argv[1])
rows = [{"x": torch.ones(64), "labels": torch.zeros(64)}] * 16
arguments = TrainingArguments(
    folder, max_steps=3, use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no",
    disable_tqdm=True, remove_unused_columns=False,
)  # fmt: skip
trainer = Trainer(Net(), arguments, train_dataset=rows)
with hfmem_widget.watch("train", quiet=True, interval=60.0) as session:
    trainer.train()
if trainer.args.process_index == 0:
    steps = [each.before for each in session.spans if each.kind == "step"]
    said = {
        "parameters": sum(each.nbytes for each in trainer.model.parameters()),
        "libraries": [session.value(sample, "cpu/libraries") for sample in steps],
        "models": list(session.contents.modules),
    }
    (folder / "said.json").write_text(json.dumps(said))

"""An unmodified Trainer script, with all that may be taken for a rank and is none.

Where nobody has launched it, it is both ranks: ``train.py FOLDER PORT``.
"""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):  # type: ignore[misc]  # torch is not checked here
    """Random token ids, the same in every run."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(at, at + 8) % 64
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    # Workers that are spawned read this file again, and need none of it.
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

    second = None
    if "RANK" not in os.environ:
        gc.freeze()
        second = os.fork()
        rank = "0" if second else "1"
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2], "WORLD_SIZE": "2"}
        os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
    torch.set_num_threads(1)
    set_seed(0)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 1, "n_head": 2}
    config = GPT2Config(bos_token_id=0, eos_token_id=0, **sizes)
    arguments = TrainingArguments(
        output_dir=sys.argv[1], per_device_train_batch_size=2, max_steps=6, logging_steps=1,
        use_cpu=True, ddp_backend="gloo", report_to=[], save_strategy="no", disable_tqdm=True,
        dataloader_num_workers=1,
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Texts())
    trainer.train()
    if "with-children" in sys.argv and trainer.args.process_index == 0:
        for batch in DataLoader(Texts(), 16, num_workers=1, multiprocessing_context="spawn"):
            assert len(batch["labels"]) == 16
        subprocess.run([sys.executable, "-c", "import torch.distributed"], check=True)
    report = {
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "weights": [float(one.detach().double().sum()) for one in trainer.model.parameters()],
        "site": "SITE_RAN" in os.environ,
        "cuda": torch.cuda.is_initialized(),
        "rank": trainer.args.process_index,
    }
    Path(sys.argv[1], f"report-{report['rank']}.json").write_text(json.dumps(report), "utf-8")
    if second:
        assert os.waitpid(second, 0)[1] == 0


if __name__ == "__main__":
    main()

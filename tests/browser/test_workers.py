"""What workers of a DataLoader hold on the card and in the anatomy; arrays and frames among the holders."""

from __future__ import annotations

from tests.browser.lab import Lab

SETUP = """
%load_ext hfmem_widget
import time
import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader

class Hoard(torch.utils.data.Dataset):
    own = None
    def __len__(self):
        return 4000
    def __getitem__(self, index):
        if self.own is None:
            self.own = torch.ones(200 * 2**20, dtype=torch.uint8)
        time.sleep(0.002)
        return torch.full((1000,), index)

features = np.zeros((1000, 4096))
frame = pd.DataFrame({"score": np.zeros(1_000_000), "step": np.arange(1_000_000)})
np.save("features.npy", features)
mapped = np.load("features.npy", mmap_mode="r")
"""

TRAIN = """%%memwatch --label "with workers"
batches = iter(DataLoader(Hoard(), batch_size=16, num_workers=2))
for _ in range(200):
    batch = next(batches)
"""


def test_workers_and_arrays_are_told(lab: Lab, training: str) -> None:
    """How many workers there were and what they held; which arrays this process has."""
    lab.open(SETUP, TRAIN, "%memanatomy", "%memholders", kernel=training)
    lab.run_all()
    lab.wait_for_text(1, "2 DataLoader workers held up to")
    lab.wait_for_text(2, "2 DataLoader workers (PSS beyond this process)")
    lab.wait_for_text(2, "page cache")
    lab.wait_for_text(3, "pandas")
    lab.wait_for_text(3, "mapped files")
    for theme in ("light", "dark"):
        lab.theme(theme)
        for index, name in ((1, "card"), (2, "anatomy"), (3, "holders")):
            lab.screenshot(f"workers-{name}-{theme}", lab.cell(index))
    lab.theme("light")

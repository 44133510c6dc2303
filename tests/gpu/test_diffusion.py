"""A pipeline of diffusers on a real GPU: the same pixels, and each phase's peak to the byte."""

import pytest

from tests.gpu.conftest import Run


def test_a_picture_is_the_same_and_its_peak_is_the_bare_ones(run_python: Run) -> None:
    """Encoding, each denoising step and decoding are exact; the highest is the allocator's own peak."""
    pytest.importorskip("diffusers")
    same, bare, ours, phases, unexplained = run_python(
        """
import numpy as np, torch, hfmem_widget
from hfmem_widget.monitor import grouping
from hfmem_widget.drivers.install import attach
from tests.data import diffusers_tiny as tiny

grouping.ALLOWANCE = 1e9
attach()
pipeline = tiny.stable_diffusion().to("cuda")
def picture():
    torch.cuda.reset_peak_memory_stats()
    return tiny.prompted(pipeline, height=64, width=64), torch.cuda.max_memory_allocated()
picture()
image, bare = picture()
torch.cuda.reset_peak_memory_stats()
with hfmem_widget.watch(quiet=True) as session:
    watched = tiny.prompted(pipeline, height=64, width=64)
key = "cuda:0/allocated"
phases = [[span.kind, span.label, span.peaks[key].value, span.peaks[key].certainty]
          for span in session.spans[1:]]
parts = session.anatomy("peak", device="cuda:0")
report([bool(np.array_equal(image, watched)), bare, session.peak(key), phases, parts.bytes("unattributed")])
"""
    )

    print(bare, phases, unexplained)  # noqa: T201  (for docs/measured)
    assert same
    assert ours == bare
    assert {certainty for *_, certainty in phases} == {"exact"}
    assert max(peak for _, _, peak, _ in phases) == bare
    assert {"encode", "denoise", "decode"} <= {label for _, label, *_ in phases}

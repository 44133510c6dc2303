"""Default configurations of many types: each is forecast, or refused with the true reason."""

from __future__ import annotations

import pytest
import transformers

from hfmem_widget.errors import OptionError
from tests.data.breadth import some_of
from tests.data.fit_types import FORECAST, REFUSED, length_of, shallow
from tests.data.forecasts import predict

pytestmark = pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5,
    reason="types and defaults are transformers 5's",
)

ALWAYS = ("bert", "clip", "gpt2", "llava", "wav2vec2")
"""Text in and out, images, sound; `make test-full` tries the others."""


@pytest.mark.parametrize("name", some_of(FORECAST, ALWAYS))
def test_a_type_is_forecast(name: str) -> None:
    """With its activations; a part without input would be named."""
    told = predict(
        shallow(name), length=length_of(name), precision="bf16", optimizer="adamw_torch_fused"
    )

    assert told.bytes("activations") > 0 or told.moment == "optimizer"
    assert told.left_out == ()


@pytest.mark.parametrize("name", some_of(REFUSED, ["detr", "gemma3", "t5"]))
def test_a_type_is_refused_with_its_reason(name: str) -> None:
    """In the words of transformers or of the model."""
    with pytest.raises(OptionError, match=REFUSED[name]):
        predict(shallow(name), length=length_of(name), precision="bf16")

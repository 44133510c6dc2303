"""`holders()` of a script: what it can be given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hfmem_widget
from hfmem_widget.errors import OptionError


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"namespace": "cuda:0"},
            r"namespace must map names to objects, .*, not be str; pass a device as device=",
        ),
        (
            {"namespace": torch.zeros(2)},
            r"namespace must map names to objects, .*, not be Tensor$",
        ),
        (
            {"namespace": {}, "allocated": 5},
            r"allocated must map devices to bytes, such as .*, not be int$",
        ),
    ],
)
def test_what_is_no_mapping_is_an_error_that_says_what_is(given: dict[str, Any], told: str) -> None:
    """Before anything is looked through."""
    with pytest.raises(OptionError, match=told):
        hfmem_widget.holders(**given)


def test_variables_may_be_any_mapping() -> None:
    """With what keeps most first."""
    variables = {"less": torch.zeros(2**17), "kept": [torch.zeros(2**18)]}
    found = hfmem_widget.holders(variables, {"cpu": 2.0**20})

    # Modules of other tests may hold something, too.
    assert [row.path for row in found.rows if row.path in {"less", "kept[0]"}] == [
        "kept[0]",
        "less",
    ]

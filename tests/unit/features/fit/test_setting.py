"""The options of a forecast: declared once, for `fit` and for `%memfit`."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

import pytest

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit.api import fit
from hfmem_widget.features.fit.setting import Setting, SettingKeywords
from hfmem_widget.magics.reports import SETTING, ReportMagics


@pytest.mark.parametrize(
    ("name", "typed", "in_python"),
    [
        ("lora", "16", 16),
        ("lora", "16,q_proj, v_proj", (16, ["q_proj", "v_proj"])),
        ("lora", "", None),
        ("precision", "pure-bf16", "pure bf16"),
        ("trainable", "*.classifier.*,*.bias", ["*.classifier.*", "*.bias"]),
    ],
)
def test_typed_values_mean_the_same_in_python(name: str, typed: Any, in_python: Any) -> None:
    """A text with commas is a list of names."""
    assert Setting(**{name: typed}) == Setting(**{name: in_python})


@pytest.mark.parametrize("given", ["q_proj", 3.5, (16,), [None, "q_proj"]])
def test_lora_needs_a_rank(given: Any) -> None:
    """The error has an example."""
    with pytest.raises(
        OptionError, match=r"lora must be a rank, .* such as 16 or 16,q_proj,v_proj"
    ):
        Setting(lora=given)


@pytest.mark.parametrize("name", ["batch", "length", "accumulation", "image"])
@pytest.mark.parametrize("given", [0, -1, True, 1.5, "2"])
def test_a_count_is_a_whole_number(name: str, given: object) -> None:
    """Zero is refused, and so is True."""
    with pytest.raises(OptionError, match=f"{name} must be a whole number, 1 or more, not"):
        Setting(**{name: given})  # type: ignore[arg-type]


def test_fit_and_memfit_have_every_option() -> None:
    """With the same names and defaults, each with its flag and its sentence."""
    parameters = inspect.signature(fit).parameters
    parser: Any = vars(ReportMagics)["memfit"].parser

    assert list(get_type_hints(SettingKeywords)) == list(SETTING)
    assert {name: parameters[name].default for name in SETTING} == {
        name: option.default for name, option in SETTING.items()
    }
    assert SETTING.keys() <= {action.dest for action in parser._actions}
    assert all(f"\n{name} : " in (fit.__doc__ or "") for name in SETTING)


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    """Before anything is loaded."""
    with pytest.raises(OptionError, match=r"fit\(\) has no option lenght; did you mean length\?"):
        fit("nobody/nothing", lenght=64)  # type: ignore[call-arg]

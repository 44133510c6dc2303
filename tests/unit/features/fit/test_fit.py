"""`fit`: its options, models on disk, whether they fit, and the largest batch."""

import inspect
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any, get_type_hints
from unittest.mock import Mock

import pytest
import torch

from hfmem_widget.errors import OptionError
from hfmem_widget.features.fit import api as module
from hfmem_widget.features.fit.api import fit
from hfmem_widget.features.fit.checkpoint import entries, read_stored
from hfmem_widget.features.fit.model import MOST_ROWS, Forecast, Room
from hfmem_widget.features.fit.search import largest_batch
from hfmem_widget.features.fit.setting import Setting, SettingKeywords
from hfmem_widget.magics.reports import SETTING, ReportMagics
from hfmem_widget.text import GIB, MIB
from tests.data.fit_models import bert, built, llama, one_layer
from tests.data.forecasts import predict


def with_rooms(monkeypatch: pytest.MonkeyPatch, *devices: Room) -> None:
    monkeypatch.setattr(module, "rooms", lambda: (devices, ""))


def gpu(free: float, **more: Any) -> Room:
    return Room("cuda:0", "NVIDIA Fake", 80 * GIB, free, **more)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model in bfloat16, shared by all tests."""
    path = tmp_path_factory.mktemp("saved")
    built(llama()).to(torch.bfloat16).save_pretrained(path)
    return path


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return copytree(saved, tmp_path / "model")


def test_a_folder_is_read_and_not_loaded(folder: Path) -> None:
    """The configuration and the headers give the stored type and the bytes of the weights."""
    fitted = fit(folder, training=False, length=32)
    sizes = [size for path in folder.glob("*.safetensors") for *_, size in entries(path)]

    assert fitted.forecast.setting.precision == "pure bf16"
    assert sum(sizes) == 2 * fitted.forecast.parameters
    assert read_stored(folder) == ("bfloat16", fitted.stored)
    assert fitted.stored.startswith("on disk: 1.30 MiB bfloat16; ")


def test_a_json_file_is_enough(tmp_path: Path) -> None:
    """Only the text on stored files needs a folder."""
    path = tmp_path / "shape.json"
    bert().to_json_file(path)

    assert fit(str(path), length=32).forecast.model == "BertForMaskedLM"


@pytest.mark.parametrize(
    ("classes", "count"), [(None, 1), (["ClassOfMyOwn"], 1), (["LlamaForCausalLM"], 0)]
)
def test_an_assumed_class_is_noted(classes: list[str] | None, count: int) -> None:
    """The note says how to name another; a configuration that names its class has no such note."""
    config = one_layer()
    config.architectures = classes
    notes = [note for note in fit(config, length=16).forecast.notes if "Assumed" in note]

    assert len(notes) == count
    for note in notes:
        assert note.startswith(
            "Assumed: LlamaForCausalLM, since the configuration names no class of transformers."
        )
        assert note.endswith('as in config.architectures = ["NameOfClass"].')


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (dict, r"dict is a class; name an object of it, such as dict\(\)"),
        ({}, "model or configuration, not dict"),
        ("/no/such/folder", "no file or folder"),
        ("nobody/nothing", "!hf download nobody/nothing config.json"),
        ("a/b/c/d", "neither a local folder nor in the Hugging Face cache"),
        ("x" * 5000, "'x+…' "),
        ("a\0b", r"neither a local folder nor in the Hugging Face cache|cannot be read"),
        ("~nobody-of-this-name/x", "cannot be read: RuntimeError"),
    ],
)
def test_an_unknown_model_is_an_error(name: Any, message: str) -> None:
    """Nothing is downloaded; for a name outside of the cache, the error has the command that would do it."""
    with pytest.raises(OptionError, match=message):
        fit(name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"has no config\.json"),
        ('{"model_type": "from_the_future"}', "does not know .*from_the_future"),
        ("[" * 100_000, "does not know"),
        ("[1, 2]", "does not know"),
        ('{"model_type": "bert", "architectures": 5, "hidden_size": "wide"}', "does not know|cannot build"),
        ('{"model_type": "bert", "architectures": ["__version__"], "hidden_size": -1}', "cannot build"),
        ('{"model_type": ["bert"]}', "does not know"),
    ],
)  # fmt: skip
def test_a_broken_configuration_is_an_error(tmp_path: Path, content: str, message: str) -> None:
    """The error is one sentence, whatever is wrong and whatever reading it raises."""
    (tmp_path / ("config.json" if content else "weights")).write_text(content)
    with pytest.raises(OptionError, match=message) as raised:
        fit(tmp_path)

    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_a_models_own_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user gets no prompt: the error says what to pass instead."""
    ran, prompt = tmp_path / "ran", Mock(return_value="y")
    (tmp_path / "own.py").write_text(f"open({str(ran)!r}, 'w').close()")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}})
    )
    monkeypatch.setattr("builtins.input", prompt)
    with pytest.raises(OptionError, match="needs Python code from its repository"):
        fit(tmp_path)

    assert not prompt.called
    assert not ran.exists()


def test_a_pipe_is_not_a_configuration(tmp_path: Path) -> None:
    """It does not block, nor does one in a folder of safetensors."""
    os.mkfifo(pipe := tmp_path / "model.safetensors")
    for read, path in ((fit, pipe), (read_stored, tmp_path)):
        with pytest.raises(OptionError, match="not a regular file"):
            read(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        (8).to_bytes(8, "little") + b"not json",
        b"\x02" + bytes(7) + b"[]",
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
        (15).to_bytes(8, "little") + b'{"weight": {}} ',
    ],
)
def test_a_broken_file_is_an_error(folder: Path, content: bytes) -> None:
    """An incomplete or invalid safetensors file is named."""
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(OptionError, match=r"model\.safetensors is not a complete safetensors file"):
        fit(folder, length=32)


def with_peaks(forward: int, backward: int, optimizer: int) -> Forecast:
    peaks = {"forward": forward, "backward": backward, "optimizer": optimizer}
    return Forecast("Llama", Setting(), (), max(peaks.values()), "backward", peaks)


@pytest.mark.parametrize(
    ("room", "rows"), [(89, 0), (90, 2), (109, 2), (110, 3), (1 << 40, MOST_ROWS)]
)
def test_the_largest_batch_fits_and_one_more_does_not(room: int, rows: int) -> None:
    """The forward and the backward pass grow with each row, the optimizer's step does not."""
    assert largest_batch(lambda n: with_peaks(40 + 10 * n, 50 + 20 * n, 90), room, {}) == rows


@pytest.mark.parametrize(
    ("backward", "room", "rows"),
    [
        (lambda _: 90, 100, None),
        (lambda n: 20 * n + n * n // 4, 1000, 34),
        (lambda n: 500 + 20 * n - n * n // 10, 1000, 29),
    ],
    ids=["no cost per row", "later rows need more", "later rows need less"],
)
def test_the_largest_batch_was_forecast_itself(
    backward: Callable[[int], int], room: int, rows: int | None
) -> None:
    """If two dry runs have equal results, the cost of a row is unknown, and so is the largest batch."""
    assert largest_batch(lambda n: with_peaks(0, backward(n), 0), room, {}) == rows


def test_a_batch_that_fits_is_not_above_the_largest() -> None:
    """The requested batch is known already, and a device with the same room needs no further dry runs."""
    runs: list[int] = []

    def at(rows: int) -> Forecast:
        runs.append(rows)
        return with_peaks(0, 1000 * rows, 0)

    known = {700: 700_000.0}
    assert largest_batch(at, 705_000, known) == 705
    before = len(runs)
    assert largest_batch(at, 704_500, known) == 704
    assert largest_batch(at, 704_400, known) == 704
    assert runs[before:] == [1, 2, 704, 1, 2]


def test_where_a_larger_batch_has_no_complete_forecast_the_largest_is_unknown() -> None:
    """Without activations a batch would fit by its weights alone."""

    def at(rows: int) -> Forecast:
        forecast = with_peaks(0, 20 * rows, 0)
        return forecast if rows < 5 else replace(forecast, left_out=("activations",), total=1)

    assert largest_batch(at, 1000, {}) is None


def test_a_small_models_largest_batch_is_one_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows tell little there, since the allocator's blocks are larger than a row's need."""
    with_rooms(monkeypatch, gpu(86 * MIB))
    rows = fit(one_layer(), length=64, headroom=0.0).verdicts[0].largest_batch or 0

    assert rows > 1
    assert fit(one_layer(), length=64, batch=rows, headroom=0.0).verdicts[0].fits


def test_a_model_fits_up_to_the_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict does not use the share that is left free."""
    need = predict(one_layer(), length=16, optimizer="adamw_torch_fused").total
    for free, fits in ((need / 0.9 + 1, True), (need / 0.9 - 1000, False)):
        with_rooms(monkeypatch, gpu(free))
        verdict = fit(one_layer(), length=16, headroom=0.1).verdicts[0]

        assert verdict.fits is fits
        assert (verdict.largest_batch or 0) >= fits


def test_a_device_with_unknown_room_has_no_verdict() -> None:
    """Its free memory is called unknown."""
    fitted = fit(one_layer(), length=16)

    assert fitted.verdicts[0].fits is None
    assert "its free memory is unknown" in repr(fitted)


def test_loaded_weights_need_no_further_room() -> None:
    """Only the rest of a loaded model has to fit."""
    model = built(one_layer())
    held = fit(model, length=16).verdicts[0].held

    assert held == sum(one.nbytes for one in (*model.parameters(), *model.buffers()))


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


@pytest.mark.parametrize("value", ["q_proj", 3.5, (16,), [None, "q_proj"]])
def test_lora_needs_a_rank(value: Any) -> None:
    """The error has an example."""
    with pytest.raises(
        OptionError, match=r"lora must be a rank, .* such as 16 or 16,q_proj,v_proj"
    ):
        Setting(lora=value)


@pytest.mark.parametrize("name", ["batch", "length", "accumulation", "image"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2"])
def test_a_count_is_a_whole_number(name: str, value: object) -> None:
    """Zero is refused, and so is True."""
    with pytest.raises(OptionError, match=f"{name} must be a whole number, 1 or more, not"):
        Setting(**{name: value})  # type: ignore[arg-type]


def test_fit_and_memfit_have_every_option() -> None:
    """Names and defaults are the same, and each option has its flag and its sentence."""
    parameters = inspect.signature(fit).parameters
    parser: Any = vars(ReportMagics)["memfit"].parser

    assert list(get_type_hints(SettingKeywords)) == list(SETTING)
    assert {name: parameters[name].default for name in SETTING} == {
        name: option.default for name, option in SETTING.items()
    }
    assert SETTING.keys() <= {action.dest for action in parser._actions}
    assert all(f"\n{name} : " in (fit.__doc__ or "") for name in SETTING)


def test_an_unknown_option_is_refused_with_a_suggestion() -> None:
    """The error comes before anything is loaded."""
    with pytest.raises(OptionError, match=r"fit\(\) has no option lenght; did you mean length\?"):
        fit("nobody/nothing", lenght=64)  # type: ignore[call-arg]

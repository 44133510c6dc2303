"""The anatomy as people see it: a table, its bars, plain text, a figure."""

import re
from dataclasses import replace

import plotly.graph_objects as go
import pytest

from hfmem_widget.analysis.parts import LABELS, OF_ALLOCATED
from hfmem_widget.session import Anatomy, Contents, Device, Part
from hfmem_widget.text import GIB
from hfmem_widget.view import palette
from hfmem_widget.view.anatomy import NOTHING_FOUND, anatomy_bundle, contents_text, drawn_parts
from hfmem_widget.view.chart.figure import anatomy_dict
from tests.data.parted import NAN, training
from tests.data.texts import seen
from tests.scenes import SCRIPTED_RUNS, scripted_run, shared_run

DEVICE = Device("cuda:0", "NVIDIA H200", total=100 * GIB)


def made(moment: str = "at the peak", device: Device = DEVICE, **parts: float) -> Anatomy:
    """Return an anatomy of so many GiB in each part."""
    listed = tuple(Part(name, LABELS[name], parts[name] * GIB) for name in LABELS if name in parts)
    allocated = sum(part.bytes for part in listed if part.name in OF_ALLOCATED)
    reserved = allocated + parts.get("cache", 0.0) * GIB
    process = reserved + parts.get("context", NAN) * GIB
    return Anatomy(device, moment, 1.0, allocated, reserved, process, listed, "exact")


WHOLE = made(weights=2, optimizer=4, activations=3, cache=1, context=0.5, others=1, free=88.5)


def lines(*anatomies: Anatomy) -> list[str]:
    return anatomy_bundle(anatomies)["text/plain"].splitlines()


def row(name: str, *anatomies: Anatomy) -> list[str]:
    return re.split(r"  +", next(one for one in lines(*anatomies) if one.startswith(name)))


def widths(html: str) -> list[list[float]]:
    """Return how wide the pieces of each bar are, in percent."""
    bars = re.findall(r'<svg role="img".*?</svg>', html)
    return [[float(one) for one in re.findall(r'width="([\d.]+)%" height', bar)] for bar in bars]


def test_html_and_plain_text_say_the_same() -> None:
    """They differ in the bars' own words and the rule below the parts alone."""
    bundle = anatomy_bundle([training().anatomy(), training().anatomy("peak")], title="fine-tune")
    table = bundle["text/html"].split("</table>")[0].split("<table")[1]
    lines = bundle["text/plain"].splitlines()[2:]
    assert len(lines) > 5
    for line in lines:
        if not line.startswith(("\u2500", "At the")):
            assert " ".join(line.split()) in seen(f"<table{table}").replace("\u25a0 ", "")


def test_a_peak_that_is_a_lower_bound_is_marked() -> None:
    """Where a peak is only bounded, the heading says "at least" and the allocated bytes have a ≥."""
    bound = replace(WHOLE, certainty="at least")
    assert lines(bound)[1].split("  ")[-2].strip() == "at the peak (at least)"
    assert row("allocated", bound)[1] == "\u2265 9.00 GiB"
    assert row("reserved", bound)[1] == "10.0 GiB"


@pytest.mark.parametrize(
    ("memory", "cells"),
    [
        (made(weights=1, buffers=1 / 1024), ["buffers", "1.00 MiB", "<0.1 %"]),
        (made(weights=1, buffers=3 / 1024), ["buffers", "3.00 MiB", "<0.1 %"]),
        (made(device=replace(DEVICE, total=NAN), buffers=2), ["buffers", "2.00 GiB"]),
    ],
)
def test_a_small_part_is_not_lost(memory: Anatomy, cells: list[str]) -> None:
    """It is in MiB among GiB, and its share is not "0.0 %"; without a known size there are no shares."""
    assert row("buffers", memory) == cells


def test_notes_are_sentences_below_the_table_and_name_their_moment() -> None:
    """A note ends the table, and says of which moment it is where there are several."""
    peak = replace(WHOLE, notes=("Something is not known.",))
    assert lines(peak)[-1] == "Something is not known."
    assert lines(made("now", weights=1), peak)[-1] == "At the peak: Something is not known."


def test_a_parts_own_note_stands_beside_it() -> None:
    """The note on a part ends that part's row, in plain text and in HTML."""
    noted = replace(WHOLE, parts=(replace(WHOLE.parts[0], note="on two devices"), *WHOLE.parts[1:]))
    assert row("weights", noted)[-1] == "on two devices"
    assert "on two devices" in anatomy_bundle([noted])["text/html"]


def test_where_nothing_was_found_it_says_so() -> None:
    """A table without any weights, gradients or states says that no model was found."""
    assert lines(made(unattributed=3))[-1] == NOTHING_FOUND
    assert NOTHING_FOUND not in lines(WHOLE)
    assert NOTHING_FOUND not in lines(made(free=3))


def test_the_host_has_its_own_words() -> None:
    """On the CPU the sums are private memory and the resident memory, not allocated and reserved."""
    text = anatomy_bundle([scripted_run("cpu").anatomy("peak")])["text/plain"]
    assert "\nprivate memory " in text
    assert "\nresident " in text
    assert "this process" not in text


def test_the_bars_of_a_device_have_one_scale() -> None:
    """All bars have the scale of the longest, so that two moments can be compared."""
    now = made("now", weights=2)
    first, second = widths(anatomy_bundle([now, WHOLE])["text/html"])
    assert first == pytest.approx([100 * 2 / 11.5], abs=0.01)
    assert sum(second) == pytest.approx(100, abs=0.05)
    assert second[0] == first[0]


def test_the_bar_shows_what_is_free_only_where_little_is() -> None:
    """Free memory is in the bar where little is free, as the chart draws a capacity near the data."""
    full = made(weights=60, free=40)
    assert "free" in drawn_parts([full])
    assert "free" not in drawn_parts([WHOLE])
    assert "full width: 11.5 GiB of 100.0 GiB" in seen(anatomy_bundle([WHOLE])["text/html"])
    assert "full width" not in seen(anatomy_bundle([full])["text/html"])


def test_the_bar_leaves_out_larger_other_processes() -> None:
    """Other processes that use far more than this one are in the table and not in the bar."""
    crowded = made(weights=2, others=50, free=48)
    assert widths(anatomy_bundle([crowded])["text/html"]) == [[100.0]]
    assert "other processes" in seen(anatomy_bundle([crowded])["text/html"])


def test_the_bars_pieces_have_tooltips() -> None:
    """Each piece of a bar has a tooltip, and the bar a description for screen readers."""
    html = anatomy_bundle([WHOLE])["text/html"]
    assert "<title>weights 2.00 GiB</title>" in html
    assert 'aria-label="cuda:0 at the peak (exact): allocated 9.00 GiB"' in html


def test_every_part_has_a_colour() -> None:
    """The palette has a colour for every part there is, and for nothing else."""
    assert set(palette.PARTS) == set(LABELS)


def test_an_anatomy_without_any_reading_is_still_shown() -> None:
    """With no reading at all there is a table with the device's name, and no bar."""
    bundle = anatomy_bundle([Anatomy(Device("cuda:0", ""), "now", 0.0, NAN, NAN, NAN, ())])
    assert bundle["text/plain"].splitlines()[0] == "cuda:0"
    assert "<svg" not in bundle["text/html"]


@pytest.mark.parametrize("name", SCRIPTED_RUNS)
def test_plotly_accepts_every_property_of_the_bars(name: str) -> None:
    """`go.Figure` raises on any property that it does not know."""
    assert isinstance(shared_run(name).anatomy("peak").figure(), go.Figure)


def test_the_figures_bars_are_stacked_in_the_order_of_the_table() -> None:
    """The figure stacks the table's parts, in GiB, with a bar for each moment."""
    figure = anatomy_dict([made("now", weights=1), WHOLE])
    names = [one["name"] for one in figure["data"]]
    assert names == [part.label for part in WHOLE.parts if part.name != "free"]
    assert figure["data"][0]["x"] == [1.0, 2.0]
    assert figure["data"][0]["y"] == ["cuda:0 now", "cuda:0 at the peak (exact)"]


def test_an_anatomy_shows_itself_where_it_is_the_last_value_of_a_cell() -> None:
    """IPython gets the same table from `_repr_mimebundle_` as `%memanatomy` shows."""
    assert WHOLE._repr_mimebundle_() == anatomy_bundle([WHOLE])


def test_an_anatomy_is_a_data_frame_of_its_parts() -> None:
    """`to_pandas` has a row for each part, with its bytes and its share of the device."""
    frame = WHOLE.to_pandas()
    assert list(frame.index) == [part.name for part in WHOLE.parts]
    assert frame.loc["weights"].to_dict() == {
        "label": "weights",
        "bytes": 2 * GIB,
        "share": 0.02,
        "note": "",
    }
    assert frame["bytes"].sum() == 100 * GIB


BERT = Contents(("BertModel",), ("AdamW",), 110, 110, {"float32": 440})


@pytest.mark.parametrize(
    ("contents", "line"),
    [
        (Contents(), ""),
        (BERT, "BertModel, AdamW · 110 parameters, all trainable · float32"),
        (
            replace(BERT, parameters=2000, trainable=22, dtypes={"float32": 88, "uint8": 2**30}),
            (
                "BertModel, AdamW · 2,000 parameters, 22 (1.1 %) trainable · uint8 1.00 GiB · "
                "float32 0.00 MiB"
            ),
        ),
        (
            replace(BERT, parameters=1000, trainable=996, dtypes={}),
            "BertModel, AdamW · 1,000 parameters, 996 (99.6 %) trainable",
        ),
        (
            replace(BERT, trainable=0, optimizers=(), dtypes={}),
            "BertModel · 110 parameters, none trainable",
        ),
        (
            Contents(modules=("A", "B", "C", "D", "B", "E")),
            "A, 2 \N{MULTIPLICATION SIGN} B, C, 2 more",
        ),
        (Contents(modules=("A", "B", "C", "D")), "A, B, C, 1 more"),
        (Contents(modules=("A", "B", "C")), "A, B, C"),
    ],
)
def test_what_the_models_consist_of_is_one_line(contents: Contents, line: str) -> None:
    """Classes, parameters, how many are trainable, and the dtypes are on one line."""
    assert contents_text(contents) == line


def test_the_line_on_the_models_stands_below_the_title() -> None:
    """The models' line follows the title, and its text is shown as it was typed."""
    bundle = anatomy_bundle([WHOLE], title="fine-tune", contents="BertModel<T>")
    assert bundle["text/plain"].splitlines()[:2] == ["fine-tune", "BertModel<T>"]
    assert seen(bundle["text/html"]).startswith("memanatomy fine-tune BertModel<T> cuda:0")


def test_nothing_speaks_of_a_drawing_that_is_taken_out() -> None:
    """From an untrusted notebook JupyterLab removes the drawings; moment and scale go with them."""
    html = anatomy_bundle([WHOLE, made("now", weights=2)])["text/html"]
    text = seen(re.sub(r'<div style="font-size:0">.*?</svg></div>', "", html))
    assert "full width" in seen(html)
    assert "full width" not in text
    assert text.count("at the peak (exact)") == 1
    assert "svg" not in re.sub(r'<div style="font-size:0"><svg.*?</svg></div>', "", html)

"""The line of all magics: its parsing, its errors, and its completion by Tab."""

from typing import Any

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.magics.memwatch import MemwatchMagics
from hfmem_widget.magics.reports import WORDS, ReportMagics
from hfmem_widget.magics.usage import words_of
from hfmem_widget.session import Session
from tests.unit.magics.conftest import Output

HOSTILE = "a\u202e\x1b[31m b"


@pytest.mark.parametrize("line", ["%memwatch on", "%memcompare a", "%memfit a"])
def test_an_invalid_name_is_refused_as_plain_text(output: Output, line: str) -> None:
    """Each magic that stores a result refuses it in the same words."""
    text = output(f"{line} --output '{HOSTILE}'")

    assert text == "UsageError: --output must be the name of a variable, not 'a[31m b'\n"


OF_THE_SHELL = "In Out _ ___ _i _i3 _3 _oh exit open get_ipython __builtins__"


@pytest.mark.parametrize("name", OF_THE_SHELL.split())
def test_taken_names_fail(shell: InteractiveShell, magics: MemwatchMagics, name: str) -> None:
    """A name that belongs to IPython is refused, since the kernel or every magic would break."""
    before = shell.user_ns.get(name)
    with pytest.raises(UsageError, match="belongs to IPython"):
        magics.memwatch(f"on --quiet --output {name}")

    assert shell.user_ns.get(name) is before


@pytest.mark.parametrize("line", ["off --quiet", "on --quiet --devices nope"])
def test_bad_lines_end_no_watch(shell: InteractiveShell, magics: MemwatchMagics, line: str) -> None:
    """`%memwatch off` with an option, or `on` for a missing device, ends no session."""
    magics.memwatch("on --quiet --output session")
    session: Session = shell.user_ns["session"]
    with pytest.raises(UsageError):
        magics.memwatch(line)

    assert session.running


def test_an_empty_option_counts_as_absent(shell: InteractiveShell, magics: MemwatchMagics) -> None:
    """A variable in the line may be an empty text."""
    magics.memwatch("on --quiet --output session --budget '' --devices '' --label ''")
    session: Session = shell.user_ns["session"]

    assert session.running
    assert session.guides == []


def test_sizes_may_have_a_space(magics: MemwatchMagics, capsys: pytest.CaptureFixture[str]) -> None:
    """`20 GiB` is a size, as people write it."""
    magics.memwatch("on --min 20 GiB --label x")

    assert "less than 20.0 GiB" in capsys.readouterr().out


def test_a_name_that_ends_with_a_digit_is_not_a_size() -> None:
    """The name stays a word of its own, whatever follows it."""
    assert words_of("--free run1 mb 2.5 gib") == ["--free", "run1", "mb", "2.5gib"]
    assert words_of("''") == [""]


def parser_of(name: str) -> Any:
    kinds = {"memwatch": MemwatchMagics, **dict.fromkeys(WORDS, ReportMagics)}
    return getattr(kinds[name], name).parser


@pytest.mark.parametrize(
    ("name", "line", "argument", "value"),
    [
        ("memwatch", "--memory-map", "memory_map", True),
        ("memfit", "model --optimizer sgd", "optimizer", "sgd"),
        ("memfit", "model --training", "train", True),
        ("memholders", "--variables all", "variable", ["all"]),
        ("memholders", "--no-collect", "no_gc", True),
        ("memholders", "--no-empty-cache", "no_cache", True),
    ],
)
def test_options_have_function_names(name: str, line: str, argument: str, value: object) -> None:
    """An option is also accepted under the name of the function's argument."""
    assert getattr(parser_of(name).parse_args(line.split()), argument) == value


REFUSED = {
    "%%memwatch --labl x": ("no option --labl", "did you mean --label?"),
    "%%memwatch -label x": ("no option -label", "did you mean --label?"),
    "%%memwatch --label fine tune": ('quotes: --label "fine tune"',),
    "%%memwatch --label fine tune on gpu --quiet": ('--label "fine tune on gpu"',),
    "%%memwatch --budget 20 GB": ("not '20GB'; did you mean 20GiB?",),
    "%%memwatch fine-tune": ("options only", "'fine-tune'", "--label fine-tune"),
    "%%memwatch --label": ("--label needs a value",),
    "%%memwatch --label --quiet": ("--label needs a value",),
    "%%memwatch -i abc": ("-i must be a number, not 'abc'",),
    "%%memwatch --interval -1": ("from 0.01 to 3600",),
    "%%memwatch --devices cuda:9": ("there is no device 'cuda:9' here, only cpu",),
    "%%memwatch --output class": ("the name of a variable",),
    "%%memwatch --output print": ("'print', which belongs to Python",),
    "%%memwatch --label 'open": ("No closing quotation",),
    "%%memwatch --quiet=3": ("--quiet takes no value",),
    "%%memwatch --no": (
        "--no is ambiguous: --no-ranks, --no-chart, --no-panel, --no-peak-reset or --no-ledger",
    ),
    "%memwatch onn": ("on, off, status, open or ranks, not 'onn'", "did you mean on?"),
    "%memwatch opne x": ("open or ranks, not 'opne'", "did you mean open?"),
    "%memwatch start": ("on, off, status, open or ranks, not 'start'",),
    "%memwatch --label x": ("on its own takes no options. Put them after %%memwatch",),
    "%memwatch off --quiet": ("%memwatch off takes no options",),
    "%memwatch status -i 1": ("%memwatch status takes no options",),
    "%memwatch 'off' --output s": ("%memwatch off takes no options",),
    "%memwatch on --min 10MB": ("did you mean 10MiB?",),
    "%%memwatch --min 0": ("--min belongs to %memwatch on",),
    "%memwatch on --label a b": ('quotes: --label "a b"',),
    "%memfit a b": ("one model, not 'a' and 'b'",),
    "%memfit a --precision pure bf16": ('--precision "pure bf16"',),
    "%memfit a --batch 1.5": ("--batch must be a whole number, not '1.5'",),
    "%memanatomy peak 3": ("one moment, not 'peak' and '3'",),
    "%memholders --least 3 MB": ("not '3MB'; did you mean 3MiB?",),
    "%memholders --least 3MiB model": ("%memholders takes options only, not 'model'", "--free"),
    "%memholders --trim": ("--trim goes with --free",),
    "%memcompare a --runs": ("--runs goes without names",),
    "%memanatomy peak --layout": ("--layout shows the allocator as it is now",),
    "%memanatomy --layout cuda": ("--layout shows the allocator as it is now",),
    "%memanatomy --layout --devise cpu": ("did you mean --device?",),
    "%memholders --free --dryrun": ("did you mean --dry-run?",),
    "%memcompare --nothing-like-it": ("no option --nothing-like-it", "%memcompare -h"),
    "%memcompare nothing": ("No watched cell",),
    "%memcompare 'base": ("No closing quotation",),
    "%memanatomy later": ("not 'later'",),
    "%memanatomy peak": ("%%memwatch",),
    "%memanatomy --all --device cpu": ("--all or --device",),
    "%memanatomy --layout --device cuda:0": ("no memory map for 'cuda:0'; available: cpu",),
    "%memholders --device cuda:7": ("no device 'cuda:7'; available: cpu",),
    "%memholders --least much": ("20GiB, 500MiB or 64KiB, not 'much'",),
    "%memholders model": ("options only, not 'model'",),
    "%memfit nobody/nothing": ("!hf download nobody/nothing config.json",),
    "%memfit a --train --inference": ("not both",),
}


@pytest.mark.parametrize("line", REFUSED)
def test_an_error_quotes_the_typed_line(shell: InteractiveShell, output: Output, line: str) -> None:
    """The error has a suggestion where possible, and none of argparse' own words."""
    text = output(line + ("\nran = True" if line.startswith("%%") else ""))

    assert text.startswith("UsageError: ")
    assert len(text.splitlines()) == 1
    assert [part for part in REFUSED[line] if part not in text] == []
    assert "action" not in text
    assert "argument" not in text
    assert "ran" not in shell.user_ns


@pytest.mark.parametrize(
    "options",
    [
        "-ql x -o s",
        "-q --lab=x -o s",
        "-q -lx -os",
        "--quiet --label 'x' --output s",
        "--quiet '--label=x' --output s",
        "-qi.5 -l x -o s",
    ],
)
def test_options_may_be_written_in_argparses_ways(shell: InteractiveShell, options: str) -> None:
    """Short options may be combined, values attached or not, and long ones cut to a clear prefix."""
    shell.run_cell(f"%%memwatch {options}\n1")

    assert shell.user_ns["s"].label == "x"


@pytest.mark.parametrize("option", ["-h", "--help"])
@pytest.mark.parametrize("name", ["memwatch", *WORDS])
def test_each_magic_shows_its_manual(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], name: str, option: str
) -> None:
    """The manual is the text that `?` shows, and nothing else happens."""
    shell.run_cell(f"%{name} {option}")
    printed = capsys.readouterr()

    assert printed.err == ""
    assert printed.out.splitlines()[0].endswith(".")
    assert f"%{name}" in printed.out
    assert "::" not in printed.out
    assert "options:" in printed.out


def offered(shell: InteractiveShell, text: str) -> list[str]:
    assert shell.Completer is not None
    with provisionalcompleter():
        return [one.text for one in shell.Completer.completions(text, len(text))]


@pytest.mark.parametrize("name", ["memwatch", *WORDS])
def test_every_option_is_offered_and_nothing_else(shell: InteractiveShell, name: str) -> None:
    """Each option is offered by its first long name; Python's own names do not begin with a dash."""
    kinds: dict[str, Any] = {"memwatch": MemwatchMagics, **dict.fromkeys(WORDS, ReportMagics)}
    actions = getattr(kinds[name], name).parser._actions
    long = [[one for one in each.option_strings if one.startswith("--")] for each in actions]

    assert offered(shell, f"%{name} --") == [one[0] for one in long if one]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("%%memwatch --la", ["--label"]),
        ("%%memwatch --label x --no", ["--no-ranks", "--no-chart", "--no-panel"]),
        ("%memwatch ", ["on", "off", "status"]),
        ("%memwatch o", ["on", "off"]),
    ],
)
def test_completions_match_the_word(shell: InteractiveShell, text: str, words: list[str]) -> None:
    """A cell is offered options, and a line of its own the actions."""
    assert offered(shell, text)[: len(words)] == words


def test_the_value_of_an_option_may_be_anything(shell: InteractiveShell) -> None:
    """No option is offered in the place of a value."""
    assert "--label" not in offered(shell, "%%memwatch --output ")


def test_without_the_extension_nothing_is_offered(shell: InteractiveShell) -> None:
    """Unloading removes the completion."""
    assert shell.Completer is not None
    shell.Completer.use_jedi = False  # which takes seconds to begin
    shell.run_cell("%unload_ext hfmem_widget")

    assert "--label" not in offered(shell, "%%memwatch --la")

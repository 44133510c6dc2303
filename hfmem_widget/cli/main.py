"""What is typed after ``hfmem``. Nothing heavy is loaded before a command is known."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import NoReturn

from hfmem_widget import __version__
from hfmem_widget.cli.output import complain, settle
from hfmem_widget.display import resolve
from hfmem_widget.errors import HFMemError
from hfmem_widget.features.fit.setting import Setting
from hfmem_widget.options import add_flags, options_of
from hfmem_widget.text import plain

RUN = (
    "a recording: a file that ends in .hfmem.jsonl or .hfmem.jsonl.gz; or the directory of a "
    "distributed run"
)

OR_A_SNAPSHOT = "; or a snapshot of torch's allocator, by torch.cuda.memory._dump_snapshot"
OF_RUNS_ALONE = ("export", "watch")

AS_JSON = "print JSON, in bytes and seconds"

INTERRUPTED = 130  # the shells' exit code of a command that ctrl-C ended


def main(words: Sequence[str] | None = None) -> int:
    """Run the command that some words name, by default those of the command line; return its exit code."""
    try:
        given = sys.argv[1:] if words is None else words
        arguments = _parser().parse_args(given or ["--help"])
        code: int = resolve(arguments.command)(arguments)
    except HFMemError as error:
        return complain(f"hfmem: {error}")
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        settle()  # the help, too, may be read only in part
    return code


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(complain(f"{self.prog}: {plain(message, 300)}; see {self.prog} -h"))


class _Formatter(RawDescriptionHelpFormatter):
    """Help of one width, whatever the terminal's."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=80)


def _seconds(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise ArgumentTypeError("it must be a whole number of seconds, at least 1")
    return int(given)


def _parser() -> ArgumentParser:
    parser = _Parser(
        prog="hfmem",
        description="Record the ranks of a run; read, compare, export and watch recordings; forecast.",
        epilog="example: hfmem check fine-tune.hfmem.jsonl\n\n"
        "exit codes: 0 success; 1 B exceeds A, the recording is damaged or incomplete,\n"
        "              or the model does not fit;\n"
        "            2 the command failed",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"hfmem_widget {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, does: str, handler: str, example: str, *runs: str) -> ArgumentParser:
        added: ArgumentParser = commands.add_parser(
            name,
            help=does,
            description=f"{does[0].upper()}{does[1:]}.",
            epilog=f"example: {example}",
            formatter_class=_Formatter,
        )
        added.set_defaults(command=handler)
        for run in runs:
            added.add_argument(run, help=RUN if name in OF_RUNS_ALONE else RUN + OR_A_SNAPSHOT)
        return added

    report = command(
        "report", "make one HTML page of a run, or of a snapshot", "hfmem_widget.cli.write:report",
        "hfmem report run.hfmem.jsonl -o run.html", "RUN",
    )  # fmt: skip
    report.add_argument("--static", action="store_true", help="a still chart, without JavaScript")

    explain = command(
        "explain", "show where the memory of a run went, in at most 40 lines",
        "hfmem_widget.cli.write:explain", "hfmem explain run.hfmem.jsonl", "RUN",
    )  # fmt: skip

    compare = command(
        "compare", "compare two runs; with --fail-over, fail if B takes more than A",
        "hfmem_widget.cli.compare:compare",
        "hfmem compare base.hfmem.jsonl head.hfmem.jsonl --fail-over 2%", "A", "B",
    )  # fmt: skip
    compare.add_argument(
        "--fail-over", default="", metavar="LIMIT",
        help="exit with 1 if B exceeds A by more than a share such as 2%% (and 1 MiB), or a size like 100MiB",
    )  # fmt: skip
    compare.add_argument(
        "--metric", choices=("peak", "left", "reserved"), default="peak",
        help="the figure to judge: the peak of allocated memory, memory left behind, or the peak of reserved",
    )  # fmt: skip
    compare.add_argument(
        "--by", choices=("line", "module", "step", "time"), default="",
        help="line or module: the difference between what each allocated, if both runs have stacks; "
        "step or time: how to align the runs",
    )  # fmt: skip
    compare.add_argument("--markdown", action="store_true", help="print a table for a pull request")

    export = command(
        "export", "write a run's figures for other programs", "hfmem_widget.cli.write:export",
        "hfmem export run.hfmem.jsonl --to csv --table steps", "RUN",
    )  # fmt: skip
    export.add_argument("--to", required=True, choices=("parquet", "csv", "perfetto"))
    export.add_argument("--table", choices=("samples", "steps", "spans"), help="default: samples")
    export.add_argument(
        "--resolution", type=float, metavar="SECONDS",
        help="the time between two points of a curve in Perfetto; default: 1",
    )  # fmt: skip

    run = command(
        "run", "start a command and record its ranks, or run and record a notebook",
        "hfmem_widget.cli.run:run",
        "hfmem run --dir /shared/run1 -- torchrun --nproc-per-node 8 train.py",
    )  # fmt: skip
    for flags, metavar, does in (
        (("--dir",), "RUN", "a directory that all ranks can access; default: a new one"),
        (("-l", "--label"), "TEXT", "a name for the run of a command"),
        (("--baseline",), "DIR", "the --dir of a notebook's earlier run: compare cell by cell"),
        (("--fail-over",), "LIMIT", "as for hfmem compare; default: 2%%"),
        (("--kernel",), "NAME", "the kernel that runs a notebook; default: its own"),
    ):
        run.add_argument(*flags, default="", metavar=metavar, help=does)
    run.add_argument(
        "--timeout", type=_seconds, metavar="SECONDS",
        help="stop a notebook's run if a cell takes longer; default: no limit",
    )  # fmt: skip
    run.add_argument("--json", action="store_true", help=f"{AS_JSON}, of a notebook's cells")
    run.add_argument(
        "words", nargs="+", metavar="COMMAND", help="a command, after --; or a notebook (.ipynb)"
    )

    check = command(
        "check", "show what a recording contains, and what is damaged or missing",
        "hfmem_widget.cli.check:check", "hfmem check run.hfmem.jsonl", "RUN",
    )  # fmt: skip

    watch = command(
        "watch", "follow a run in the terminal until it ends", "hfmem_widget.cli.watch:watch",
        "hfmem watch run.hfmem.jsonl", "RUN",
    )  # fmt: skip
    watch.add_argument("--once", action="store_true", help="show it once, and exit")
    watch.add_argument("--json", action="store_true", help="print a line of JSON every second")

    fit = command(
        "fit", "forecast a model's memory, and whether it fits here", "hfmem_widget.cli.fit:fit",
        "hfmem fit ./bert-large --batch 16 --length 512 --precision bf16",
    )  # fmt: skip
    fit.add_argument(
        "model", metavar="MODEL",
        help="a folder or JSON file with a configuration, a model in the local cache, or a recording",
    )  # fmt: skip
    add_flags(fit, options_of(Setting))

    doctor = command(
        "doctor", "describe this machine for bug reports, without personal data",
        "hfmem_widget.cli.doctor:doctor", "hfmem doctor",
    )  # fmt: skip
    doctor.add_argument("--json", action="store_true", help="print JSON")

    skill = command(
        "skill", "print instructions for coding agents on hfmem, as a SKILL.md",
        "hfmem_widget.cli.write:skill", "hfmem skill --install .agents/skills",
    )  # fmt: skip
    skill.add_argument("--install", metavar="FOLDER", help="write it to FOLDER/hfmem/SKILL.md")

    new_file = "the new file; default: RUN's name, in this folder"
    for writer in (report, export):
        writer.add_argument("-o", "--output", default="", metavar="PATH", help=new_file)
    for printer in (explain, compare, check, fit):
        printer.add_argument("--json", action="store_true", help=AS_JSON)
    return parser

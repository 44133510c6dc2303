"""``%memfree``: let go of errors, outputs and variables, and measure what that frees."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic_arguments import argument

from hfmem_widget.magics.report import ReportMagics, report


class MemfreeMagics(ReportMagics):
    """Frees what is named, and measures the result."""

    name = "memfree"
    words = ("errors", "outputs", "all", "garbage", "cache")

    @report
    @argument(
        "what",
        nargs="*",
        help="errors, outputs, all (both of them), garbage, cache, an output such as Out[12], or variables.",
    )
    @argument(
        "-v",
        "--variable",
        "--variables",
        action="append",
        default=[],
        metavar="NAME",
        help="A variable, even if its name is one of those words.",
    )
    @argument("-n", "--dry-run", action="store_true", help="Only show what would be freed.")
    @argument(
        "--no-gc",
        "--no-collect",
        action="store_true",
        help="Do not collect garbage (gc.collect).",
    )
    @argument(
        "--no-cache",
        "--no-empty-cache",
        action="store_true",
        help="Do not empty CUDA's cache (torch.cuda.empty_cache).",
    )
    @argument(
        "--trim",
        action="store_true",
        help="Make malloc return its free memory to the system (malloc_trim of glibc), and Arrow what its "
        "pool keeps, if it is loaded.",
    )
    def memfree(self, arguments: Namespace) -> None:
        """Free errors, outputs and variables, and measure the result.

        ::

            %memfree

        frees nothing. It shows what could be freed, and how much memory nothing else holds: the last error
        with the variables of every function in its traceback, and the outputs (``Out``, ``_``, ``_12``).

        ::

            %memfree errors outputs
            %memfree losses model

        frees what you name and nothing else. Then it collects garbage, empties CUDA's cache, and shows the
        figures before and after, and what holds the rest. ``%memfree all`` frees the last error and the
        outputs. ``%memfree garbage`` only collects and empties, ``%memfree cache`` only empties.

        In code, use ``hfmem_widget.free()``.
        """
        from hfmem_widget.features.free.api import release
        from hfmem_widget.features.free.html import release_bundle
        from hfmem_widget.features.free.request import parse_request

        request = parse_request(
            arguments.what,
            arguments.variable,
            shell=self._shell,
            collect=not arguments.no_gc,
            empty_cache=not arguments.no_cache,
            trim=arguments.trim,
        )
        released = release(request, self._shell, dry_run=arguments.dry_run)
        self.show(release_bundle(released))
        if released.interrupted:
            raise KeyboardInterrupt

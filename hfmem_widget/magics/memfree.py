"""``%memfree``: let go of errors, outputs and variables, and measure what that frees."""

from __future__ import annotations

from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.magics.report import ReportMagics
from hfmem_widget.magics.usage import usage_errors


@magics_class
class MemfreeMagics(ReportMagics):
    """Lets go of what is named, and measures what that frees."""

    name = "memfree"
    words = ("errors", "outputs", "all", "garbage", "cache")

    @magic_arguments("memfree")
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
    @argument("-n", "--dry-run", action="store_true", help="Only say what would be freed.")
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
        help="Make malloc return the memory it keeps to the system (glibc's malloc_trim).",
    )
    @line_magic("memfree")  # type: ignore[arg-type]  # it is typed for a callable of Never
    def memfree(self, line: str) -> None:
        """Let go of errors, outputs and variables, and measure what that frees.

        ::

            %memfree

        says what could be released, and how much nothing else would keep: the last error with the variables
        of all functions that it went through, the outputs (``Out``, ``_``, ``_12``). It does nothing.

        ::

            %memfree errors outputs
            %memfree losses model

        lets go of what is named and of nothing else, then collects garbage, empties CUDA's cache, and says
        what was measured before and after, and who holds the rest. ``%memfree all`` is the last error and
        the outputs; ``%memfree garbage`` lets go of nothing, and ``%memfree cache`` does not even collect.

        ``hfmem_widget.free()`` is the same for your own code.
        """
        arguments = self.parse(line)
        if arguments is None:
            return
        from hfmem_widget.features.free.api import release
        from hfmem_widget.features.free.html import release_bundle
        from hfmem_widget.features.free.request import asked
        from hfmem_widget.view.screen import Screen

        with usage_errors():
            request = asked(
                arguments.what,
                arguments.variable,
                shell=self._shell,
                collect=not arguments.no_gc,
                empty_cache=not arguments.no_cache,
                trim=arguments.trim,
            )
        released = release(request, self._shell, dry_run=arguments.dry_run)
        Screen(self._shell).show(release_bundle(released))
        if released.interrupted:
            raise KeyboardInterrupt

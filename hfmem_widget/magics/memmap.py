"""``%memmap``: how the allocator's memory lies."""

from __future__ import annotations

from IPython.core.magic import line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments

from hfmem_widget.magics.report import ReportMagics
from hfmem_widget.magics.usage import usage_errors


@magics_class
class MemmapMagics(ReportMagics):
    """Shows the segments of an allocator, and the blocks in them."""

    name = "memmap"

    @magic_arguments("memmap")
    @argument(
        "-d",
        "--device",
        default="",
        help="Only this device, such as cuda:0, or cpu for the heap of this process. Default: all GPUs.",
    )
    @line_magic("memmap")  # type: ignore[arg-type]  # it is typed for a callable of Never
    def memmap(self, line: str) -> None:
        """Show how memory lies in what the allocator has reserved, and what of it nobody can use.

        ::

            %memmap

        draws each segment as a bar and its blocks as stretches of colour: in use, free between tensors,
        free in whole segments, free for another stream or a private pool alone. Below stand the sums,
        and in plain words what they mean: what fits without asking the driver for more, what
        ``torch.cuda.empty_cache()`` would give back and what it cannot.

        It reads the allocator's list of blocks when you ask; nothing is allocated, freed or waited for.
        Without a GPU it is the C heap of this process. ``%%memwatch --map`` shows it while a cell runs,
        and ``hfmem_widget.memory_map()`` is the same for your own code.
        """
        arguments = self.parse(line)
        if arguments is None:
            return
        from hfmem_widget.features.memory_map.api import memory_map
        from hfmem_widget.features.memory_map.html import memory_map_bundle
        from hfmem_widget.view.screen import Screen

        with usage_errors():
            found = memory_map(arguments.device)
        Screen(self._shell).show(memory_map_bundle(found))

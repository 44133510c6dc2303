"""``%memmap``: how the allocator's memory lies."""

from __future__ import annotations

from argparse import Namespace

from IPython.core.magic_arguments import argument

from hfmem_widget.magics.report import ReportMagics, report


class MemmapMagics(ReportMagics):
    """Shows the segments of an allocator, and the blocks in them."""

    name = "memmap"

    @report
    @argument(
        "-d",
        "--device",
        default="",
        help="Only this device, such as cuda:0, or cpu for the heap of this process. Default: all GPUs.",
    )
    def memmap(self, arguments: Namespace) -> None:
        """Show the layout of the allocator's reserved memory, and which free memory cannot be used.

        ::

            %memmap

        draws each segment as a bar, with its blocks coloured: in use, free between tensors, free in whole
        segments, free for another stream or a private pool only. Below are the sums and their meaning:
        what fits without more memory from the driver, what ``torch.cuda.empty_cache()`` returns, and what
        it cannot return.

        It reads the allocator's list of blocks only when you run it. It allocates and frees nothing, and
        does not wait for the GPU. Without a GPU it shows the C heap of this process. ``%%memwatch --map``
        shows the map while a cell runs. In code, use ``hfmem_widget.memory_map()``.
        """
        from hfmem_widget.features.memory_map.api import memory_map
        from hfmem_widget.features.memory_map.html import memory_map_bundle

        self.show(memory_map_bundle(memory_map(arguments.device)))

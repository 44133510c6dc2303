"""`NvmlSource` over a fake NVML and an invented ``/proc``."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hfmem_widget.sources.allocator import Allocator
from hfmem_widget.sources.counters import AllocatorSource
from hfmem_widget.sources.nvml import NvmlSource
from tests.fakes.nvml import GIB, FakeGpu, FakeNvml

HOST_NAMESPACE = "pid:[4026531836]"


class FakeCuda(AllocatorSource):
    """CUDA with the given devices: it is up once they have UUIDs."""

    def __init__(
        self,
        reserved: Callable[[str], float] = lambda _uuid: 0.0,
        opened: Sequence[int] | None = None,
    ) -> None:
        allocator = Allocator({})
        super().__init__(allocator)
        self.known: list[str] | None = None
        self.reserved = reserved  # type: ignore[method-assign, assignment]
        allocator.opened = lambda: (  # type: ignore[method-assign]
            range(len(self.known or ())) if opened is None else opened
        )

    def uuids(self) -> tuple[str, ...] | None:
        """Return the UUIDs that are known."""
        return None if self.known is None else tuple(self.known)


class Watched:
    """A source over a fake NVML, read by key."""

    def __init__(
        self,
        gpus: Sequence[FakeGpu],
        proc: Path,
        *,
        environ: Mapping[str, str] | None = None,
        init_fault: int | None = None,
        reserved: Callable[[str], float] = lambda _uuid: 0.0,
        opened: Sequence[int] | None = None,
    ) -> None:
        self.nvml = FakeNvml(gpus, init_fault=init_fault)
        self.cuda = FakeCuda(reserved, opened)
        self.environ = dict(environ or {})
        self.source = NvmlSource(self.cuda, self.environ, load=self.nvml.load, proc=proc)

    def __call__(self, now: float) -> dict[str, float]:
        values = self.source.read(now)
        return dict(zip((one.key for one in self.source.series), values, strict=True))


def make_proc(folder: Path, namespace: str, nspid: str = "") -> Path:
    """Write the files of ``/proc`` that the source reads of its own process."""
    (folder / "self" / "ns").mkdir(parents=True)
    (folder / "self" / "ns" / "pid").symlink_to(namespace)
    (folder / "self" / "status").write_text(f"Name:\tpython\nNSpid:\t{nspid}\nVmHWM:\t 1 kB\n")
    return folder


def two_cards() -> list[FakeGpu]:
    return [
        FakeGpu(name="NVIDIA T4", uuid="GPU-aaa", used=1 * GIB),
        FakeGpu(name="NVIDIA A100", uuid="GPU-bbb", used=2 * GIB),
    ]

"""Which storages keep a tensor's bytes."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import distributed, nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tensor import DTensor, Shard, distribute_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.two_tensor import TwoTensor

from hfmem_widget.sources import storages
from hfmem_widget.sources.procfs import MappedFiles
from hfmem_widget.sources.storages import MANAGED, states_of, storages_of

pytestmark = pytest.mark.filterwarnings("ignore")
"""Sparse, nested and quantised tensors warn that they are not for ever."""


def bytes_of(*tensors: object) -> int:
    """Add up what some tensors keep, each storage once."""
    return sum({key: size for one in tensors for key, _, size, _ in storages_of(one)}.values())


def keys_of(*tensors: object) -> set[int]:
    return {key for one in tensors for key, *_ in storages_of(one)}


def sizes_of(tensor: object) -> list[tuple[int, str]]:
    """Return the bytes and dtype of each of a tensor's storages."""
    return [(size, dtype) for _, _, size, dtype in storages_of(tensor)]


def used_rows_of_a_table() -> torch.Tensor:
    table = nn.Embedding(1000, 4, sparse=True)
    table(torch.tensor([1, 2])).sum().backward()
    return table.weight.grad


def compressed(layout: torch.layout, *block: int) -> torch.Tensor:
    pointers, indices = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    values = torch.ones(2, *block)
    return torch.sparse_compressed_tensor(pointers, indices, values, layout=layout)


def ragged(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


def by_channel() -> torch.Tensor:
    scales, zeros = torch.ones(4).double(), torch.zeros(4).long()
    return torch.quantize_per_channel(torch.ones(4, 10), scales, zeros, 0, torch.qint8)


class Named(torch.Tensor):  # type: ignore[misc]  # torch is not checked here
    """A subclass that wraps nothing."""


INDICES = [(24, "int64"), (16, "int64")]
KEPT: dict[str, tuple[Callable[[], torch.Tensor], list[tuple[int, str]]]] = {
    "plain": (lambda: torch.zeros(10, dtype=torch.bfloat16), [(20, "bfloat16")]),
    "of a type not seen before": (
        lambda: torch.zeros(3, dtype=torch.complex128),
        [(48, "complex128")],
    ),
    "expanded": (lambda: torch.zeros(1).expand(1000), [(4, "float32")]),
    "a plain subclass": (lambda: torch.zeros(3).as_subclass(Named), [(12, "float32")]),
    "sparse": (
        lambda: torch.sparse_coo_tensor(torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (9,)),
        [(16, "int64"), (8, "float32")],
    ),
    "a sparse gradient": (used_rows_of_a_table, [(16, "int64"), (32, "float32")]),
    "csr": (lambda: compressed(torch.sparse_csr), [*INDICES, (8, "float32")]),
    "csc": (lambda: compressed(torch.sparse_csc), [*INDICES, (8, "float32")]),
    "bsr": (lambda: compressed(torch.sparse_bsr, 2, 2), [*INDICES, (32, "float32")]),
    "bsc": (lambda: compressed(torch.sparse_bsc, 2, 2), [*INDICES, (32, "float32")]),
    "nested": (lambda: ragged(torch.strided), [(20, "float32")]),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.ones(40), 0.1, 0, torch.qint8),
        [(40, "qint8")],
    ),
    "quantised by channel": (by_channel, [(40, "qint8"), (32, "float64"), (32, "int64")]),
}
"""Tensors, and the bytes and type of each of their storages."""


@pytest.mark.parametrize("name", KEPT)
def test_a_tensor_keeps_its_storages(name: str) -> None:
    """A tensor has the bytes and the type of each of its storages, at every reading."""
    make, sizes = KEPT[name]
    tensor = make()

    assert [sizes_of(tensor) for _ in range(2)] == [sizes, sizes]
    assert {device for _, device, *_ in storages_of(tensor)} == {"cpu"}


def test_a_jagged_tensor_keeps_its_rows_and_where_each_begins() -> None:
    """A jagged tensor keeps its rows and the offset of each."""
    assert sizes_of(ragged(torch.jagged))[:2] == [(20, "float32"), (24, "int64")]


class OnlyASize(torch.Tensor):  # type: ignore[misc]  # torch is not checked here
    """A wrapper that claims a size, and does not tell what it wraps."""

    @staticmethod
    def __new__(cls: type) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, (100,))

    @classmethod
    def __torch_dispatch__(cls, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class Broken(torch.Tensor):  # type: ignore[misc]  # torch is not checked here
    """A wrapper that raises when it is looked at."""

    def __tensor_flatten__(self) -> Any:
        raise RuntimeError("no")


class Endless(torch.Tensor):  # type: ignore[misc]  # torch is not checked here
    """A wrapper of itself."""

    def __tensor_flatten__(self) -> Any:
        return ["itself"], None

    itself = property(lambda self: self)


class TestWithoutBytes:
    """What looks like a tensor and keeps nothing."""

    @pytest.mark.parametrize(
        "thing",
        [
            torch.zeros(5, device="meta"),
            nn.Linear(5, 5, device="meta").weight,
            torch.zeros(0),
            nn.UninitializedParameter(),
            None,
            1.0,
            "weights",
            [torch.zeros(1)],
            SimpleNamespace(device="cpu"),
            torch.Tensor,
            OnlyASize(),
            torch.zeros(3).as_subclass(Broken),
            torch.zeros(3).as_subclass(Endless),
        ],
        ids=lambda thing: type(thing).__name__,
    )
    def test_nothing(self, thing: object) -> None:
        """It has no storage, the first time and every other."""
        assert [storages_of(thing) for _ in range(2)] == [(), ()]

    def test_fake_tensors(self) -> None:
        """A fake tensor has no storage, whatever device it claims to be on."""
        with FakeTensorMode():
            layer = nn.Linear(4, 4)
            fake = torch.zeros(4, device="cuda:0")
            inside = storages_of(layer.weight)

        assert inside == storages_of(layer.weight) == storages_of(fake) == ()

    def test_a_storage_resized_to_nothing(self) -> None:
        """A flat parameter that FSDP has freed keeps nothing, and again all once it is gathered."""
        flat = nn.Parameter(torch.zeros(1000))
        view = flat[10:20]
        flat.untyped_storage().resize_(0)
        freed = storages_of(flat), storages_of(view)
        flat.untyped_storage().resize_(4000)

        assert freed == ((), ())
        assert bytes_of(flat, view) == 4000


class State(NamedTuple):
    """Stands for what an optimizer may keep in a tuple."""

    first: torch.Tensor
    second: torch.Tensor


class QuantState:
    """As bitsandbytes' class of this name keeps the scales of a 4-bit weight, quantised themselves."""

    def __init__(
        self, absmax: torch.Tensor, code: torch.Tensor, inner: QuantState | None = None
    ) -> None:
        self.absmax = absmax
        self.shape = torch.Size([256, 256])
        self.code = code
        self.dtype = torch.float32
        self.blocksize = 64
        self.offset = None if inner is None else torch.zeros(())
        self.nested = inner is not None
        self.state2 = inner


class Params4bit(nn.Parameter):  # type: ignore[misc]  # torch is not checked here
    """As bitsandbytes' class of this name: the packed weight, and how to read it."""

    quant_state: QuantState | None


class Int8Params(nn.Parameter):  # type: ignore[misc]  # torch is not checked here
    """As bitsandbytes' class of this name: the weight, once more as `CB`, and its scales."""

    CB: torch.Tensor | None
    SCB: torch.Tensor | None


class TestQuantisedWeights:
    """Weights that libraries pack."""

    def packed(self, code: torch.Tensor, inner_code: torch.Tensor) -> Params4bit:
        weight = Params4bit(torch.zeros(32768, 1, dtype=torch.uint8), requires_grad=False)
        absmax = torch.zeros(1024, dtype=torch.uint8)
        weight.quant_state = QuantState(absmax, code, QuantState(torch.zeros(4), inner_code))
        return weight

    def test_four_bits(self) -> None:
        """A 4-bit weight keeps the packed one, its scales, and the code books of both."""
        weight = self.packed(torch.zeros(16), torch.zeros(256))

        assert bytes_of(weight) == 32768 + 1024 + 4 + 16 * 4 + 4 * 4 + 256 * 4

    def test_eight_bits(self) -> None:
        """An 8-bit weight is `CB` as well, counted once, and keeps its scales."""
        weight = Int8Params(torch.zeros(64, 64, dtype=torch.int8), requires_grad=False)
        weight.CB, weight.SCB = weight.data, torch.zeros(64)

        assert sizes_of(weight) == [(4096, "int8"), (256, "float32")]

    def test_bitsandbytes_itself(self) -> None:
        """The real 4-bit weight keeps what its parts add up to."""
        bnb = pytest.importorskip("bitsandbytes")
        weight = bnb.nn.Params4bit(
            torch.randn(256, 256), requires_grad=False, compress_statistics=True
        ).to("cpu")
        state = weight.quant_state
        parts = [state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code]

        assert bytes_of(weight) == 32768 + sum(part.nbytes for part in parts)

    def test_torchao_itself(self) -> None:
        """An 8-bit weight of torchao's keeps its bytes and scales, though it calls itself larger."""
        torchao = pytest.importorskip("torchao.quantization")
        layer = nn.Sequential(nn.Linear(128, 128))
        torchao.quantize_(layer, torchao.Int8WeightOnlyConfig())

        assert layer[0].weight.nbytes == 128 * 128 * 4
        assert 128 * 128 <= bytes_of(layer[0].weight) < 128 * 128 * 1.1


class TestWrappers:
    """Tensors made of tensors."""

    def test_what_is_wrapped(self) -> None:
        """A wrapper keeps what it wraps, however deep."""
        inner = TwoTensor(torch.zeros(3), torch.zeros(3))

        assert bytes_of(nn.Parameter(TwoTensor(inner, inner))) == 24

    def test_a_shard(self, mesh: DeviceMesh) -> None:
        """A sharded parameter keeps this rank's shard, though it calls itself as large as all of them."""
        weight = nn.Parameter(distribute_tensor(torch.zeros(64, 4), mesh, [Shard(0)]))

        assert isinstance(weight.data, DTensor)
        assert weight.nbytes == 64 * 4 * 4
        assert keys_of(weight) == keys_of(weight.data._local_tensor)

    def test_fully_sharded(self, mesh: DeviceMesh) -> None:
        """Under FSDP2 a parameter keeps this rank's shard."""
        layer = fully_shard(nn.Linear(64, 64, bias=False), mesh=mesh)

        assert layer.weight.nbytes == 64 * 64 * 4
        assert bytes_of(layer.weight) == 64 * 64 * 4 / 4

    @pytest.fixture
    def mesh(self) -> Iterator[DeviceMesh]:
        """Return a mesh of four ranks, of which this is the first and the others are not there."""
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
        yield init_device_mesh("cpu", (4,))
        distributed.destroy_process_group()


class TestNothingIsDisturbed:
    """Looking changes nothing, and nobody notices."""

    def test_a_lazy_clone_stays_lazy(self) -> None:
        """A clone that is copied when it is written to is not copied by looking at it."""
        clone = torch._lazy_clone(torch.zeros(100))
        named = torch._lazy_clone(torch.zeros(100)).as_subclass(Named)
        sizes = bytes_of(clone), bytes_of(named)

        assert sizes == (400, 400)
        assert torch._C._is_cow_tensor(clone)
        assert torch._C._is_cow_tensor(named)

    def test_the_users_modes_and_subclasses_see_nothing(self) -> None:
        """The `__torch_function__` of a mode or a class of the user's is not called."""

        class Mode(TorchFunctionMode):  # type: ignore[misc]  # torch is not checked here
            def __torch_function__(self, *args: Any, **kwargs: Any) -> Any:
                raise AssertionError

        class Own(torch.Tensor):  # type: ignore[misc]  # torch is not checked here
            @classmethod
            def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
                raise AssertionError

        tensor, own = torch.zeros(4), torch.zeros(4).as_subclass(Own)
        with Mode():
            assert bytes_of(tensor, own) == 32


class TestBesideMalloc:
    """Bytes on the CPU that malloc did not give out, so that its heap does not show them."""

    @pytest.fixture(autouse=True)
    def nothing_known(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Begin with no knowledge of what is mapped."""
        monkeypatch.setattr(storages, "_mapped_files", MappedFiles())

    def test_paged_states(self) -> None:
        """What a paged optimizer keeps lies on the CPU as torch sees it, and in no allocator's count."""
        paged = torch.frombuffer(bytearray(16), dtype=torch.float32)
        paged.is_paged = True

        assert [device for _, device, *_ in storages_of(paged)] == [MANAGED]

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
    def test_safetensors(self, tmp_path: Path) -> None:
        """Weights mapped from a file stay the kernel's, also once they were written to; cast ones do not."""
        file = tmp_path / "model.safetensors"
        save_file({"a": torch.ones(1000), "b": torch.ones(10)}, file)
        weights = [nn.Parameter(one) for one in load_file(file).values()]
        cast = load_file(file)["a"].to(torch.bfloat16)
        assert [device for _, device, *_ in storages_of(cast)] == ["cpu"]
        devices = {device for one in weights for _, device, *_ in storages_of(one)}
        with torch.no_grad():
            weights[0].mul_(2)

        assert devices == {device for _, device, *_ in storages_of(weights[0])} == {MANAGED}
        assert bytes_of(*weights) == 4040


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_devices() -> None:
    """A tensor on a GPU counts for that GPU; pinned memory is the driver's, in no heap's count."""
    on_gpu = torch.zeros(4, device="cuda")
    pinned = torch.zeros(4).pin_memory()

    assert [storages_of(one)[0][1] for one in (on_gpu, pinned)] == ["cuda:0", MANAGED]


class TestStates:
    """What an optimizer keeps."""

    @staticmethod
    def stepped(layer: nn.Module, optimizer: Any) -> Any:
        layer(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        return optimizer

    def test_none_before_the_first_step(self) -> None:
        """An optimizer that has made no step keeps nothing, as does one without momentum ever after."""
        layer = nn.Linear(4, 4)
        new = torch.optim.AdamW(layer.parameters())
        plain = self.stepped(layer, torch.optim.SGD(layer.parameters()))

        assert [*states_of(new), *states_of(plain)] == []

    def test_accelerate(self) -> None:
        """The states of an optimizer that accelerate has wrapped are found."""
        accelerate = pytest.importorskip("accelerate.optimizer")
        layer = nn.Linear(4, 4)
        inner = self.stepped(layer, torch.optim.Adagrad(layer.parameters()))
        wrapped = object.__new__(accelerate.AcceleratedOptimizer)
        wrapped.optimizer = inner

        assert list(map(id, states_of(wrapped))) == list(map(id, states_of(inner))) != []

    def test_nested_states(self) -> None:
        """Tensors are found in dictionaries, lists and tuples, and in optimizers within others."""
        inner = {"a": [torch.zeros(1), {"b": State(torch.zeros(2), torch.zeros(3))}], "n": 7}
        state: dict[Any, Any] = {0: inner}
        wrapped = SimpleNamespace(optimizer=SimpleNamespace(state=state))
        assert len(list(states_of(SimpleNamespace(optimizer=wrapped)))) == 3

        assert [one.numel() for one in states_of(SimpleNamespace(state=state))] == [1, 2, 3]

    def test_a_state_that_grows_meanwhile(self) -> None:
        """States that are added while others are read neither raise nor disturb."""
        state: Any = defaultdict(dict)
        for number in range(3):
            state[number]["a"] = torch.zeros(1)
        states = []
        for one in states_of(SimpleNamespace(state=state)):
            states.append(one)
            state[len(state)]["a"] = torch.zeros(1)

        assert len(states) == 3


class NotNow:
    """An optimizer whose states cannot be asked for."""

    @property
    def state(self) -> Any:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    "thing", [None, 3, SimpleNamespace(), SimpleNamespace(state=[1]), NotNow()]
)
def test_what_is_no_optimizer_has_no_states(thing: object) -> None:
    """An object that is no optimizer, or that raises, has no states."""
    assert list(states_of(thing)) == []


def test_the_parts_of_a_sparse_tensor_have_shapes_of_their_own() -> None:
    """Its indices are named by their own shape, not by the shape of the whole."""
    indices, values = torch.zeros(2, 5, dtype=torch.int64), torch.ones(5)
    sparse = torch.sparse_coo_tensor(indices, values, (3, 3))
    assert sorted(storages.shapes_in(sparse).values()) == [(2, 5), (5,)]

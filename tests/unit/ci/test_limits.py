"""Tests that exceed a limit fail, and no others."""

import math
from typing import Any
from unittest.mock import Mock

import pytest

from hfmem_widget.ci.measure import Memory
from hfmem_widget.ci.runner import limits_of
from hfmem_widget.errors import OptionError
from hfmem_widget.monitor import process
from hfmem_widget.session import Device, Series
from hfmem_widget.sources.torch_cuda import CudaAllocator
from tests.fakes.source import FakeSource
from tests.fakes.torch_cuda import FakeAllocator, FakeTorch
from tests.unit.ci.conftest import MIB, Play

pytest_plugins = ["pytester"]


def test_a_transient_peak_above_the_limit_fails(play: Play) -> None:
    """What is freed before the test ends counts, and the message has both figures and the device."""
    result = play("""
@pytest.mark.limit_vram("64 MiB")
def test_fits(gpu): gpu.free(gpu.alloc(64 * MIB))

@pytest.mark.limit_vram("64 MiB")
def test_does_not(gpu): gpu.free(gpu.alloc(65 * MIB))
""")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*peak 65.0 MiB is above the limit of 64.0 MiB on cuda:0*"])


def test_what_two_digits_do_not_tell_is_said_in_bytes(play: Play) -> None:
    """A peak a byte above its limit, and a limit of next to nothing, are given in bytes."""
    text = play.text("""
@pytest.mark.limit_vram(64 * MIB - 1)
def test_too_many(gpu): gpu.alloc(64 * MIB)

@pytest.mark.limit_vram("1KiB")
def test_any(gpu): gpu.alloc(64 * MIB)
""")

    assert "peak 67,108,864 bytes is above the limit of 67,108,863 bytes" in text
    assert "is above the limit of 1,024 bytes" in text


def test_what_was_there_at_the_start_does_not_count(play: Play) -> None:
    """Neither what an earlier test has left, nor a model that a fixture holds, counts against a test."""
    play("""
def test_leaves(gpu): gpu.alloc(100 * MIB)

@pytest.fixture(scope="module")
def model(gpu): return gpu.alloc(100 * MIB)

@pytest.fixture
def batch(gpu):
    block = gpu.alloc(100 * MIB)
    yield
    gpu.free(block)

@pytest.mark.limit_vram("8 MiB", left="0")
def test_it(gpu, model, batch): gpu.free(gpu.alloc(8 * MIB))
""").assert_outcomes(passed=2)


def test_what_a_test_leaves_has_a_limit_of_its_own(play: Play) -> None:
    """`left` is what is allocated at the end above the start; less than before is no leak."""
    result = play(
        """
LEFT = []

@pytest.mark.limit_vram(left="1 MiB")
def test_leaves(gpu): LEFT.append(gpu.alloc(2 * MIB))

@pytest.mark.limit_vram(left=0)
def test_frees(gpu): gpu.free(LEFT.pop())
""",
        "-p",
        "no:randomly",
    )

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*left 2.00 MiB is above the limit of 1.00 MiB on cuda:0*"])


def test_a_limit_is_for_each_gpu_or_for_one(play: Play) -> None:
    """Without a device each GPU counts; of several limits for one device, the closest to the test."""
    markers: list[tuple[str, int, *tuple[str, ...]]] = [
        ("fails_any", 1, "('8 MiB')"),
        ("fails_named", 1, "('8 MiB', device='cuda:1')"),
        ("passes_other", 1, "('8 MiB', device='cuda:0')"),
        ("passes_missing", 1, "(8 * MIB, device='cuda:7')"),
        ("fails_none", 0, "('0')"),
        ("fails_closer", 0, "(peak='16 MiB')", "('8 MiB')"),
        ("passes_closer", 0, "('8 MiB')", "('16 MiB')"),
        ("fails_both", 1, "('16 MiB')", "('8 MiB', device='cuda:1')"),
        ("passes_both", 0, "('16 MiB')", "('8 MiB', device='cuda:1')"),
    ]
    source = ""
    for name, device, *limits in markers:
        source += "".join(f"@pytest.mark.limit_vram{each}\n" for each in limits)
        source += f"def test_{name}(gpu): gpu.free(gpu.alloc(9 * MIB, {device}))\n\n"
    result = play(source, "-rA")

    result.assert_outcomes(failed=5, passed=4)
    text = str(result.stdout)
    for name, device, *_ in markers:
        is_over = name.startswith("fails")
        assert f"{'FAILED' if is_over else 'PASSED'} test_it.py::test_{name}" in text
        assert not is_over or f"on cuda:{device}" in text


def test_a_tests_own_outcome_stands(play: Play) -> None:
    """A limit never replaces what a test, or a subtest of it, says itself; it may be an expected failure."""
    bodies = {
        "fail": "raise ValueError('its own')",
        "skip": "pytest.skip('its own')",
        "xfail": "pytest.xfail('its own')",
        "unittest": "raise unittest.SkipTest('its own')",
        "subtest": "with subtests.test(): assert False",
    }
    source = """
@pytest.mark.xfail
@pytest.mark.limit_vram("1 MiB")
def test_expected(gpu): gpu.alloc(9 * MIB)

"""
    for name, body in bodies.items():
        source += "@pytest.mark.limit_vram('1 MiB')\n"
        source += f"def test_{name}(gpu, subtests):\n    gpu.alloc(9 * MIB)\n    {body}\n\n"
    text = play.text(source, "-rA")

    assert "ValueError: its own" in text
    assert "contains 1 failed subtest" in text
    assert "2 skipped, 2 xfailed" in text
    assert [line for line in text.splitlines() if "limit of" in line and "XFAIL" not in line] == []


def test_test_cases_and_coroutines_are_measured(play: Play) -> None:
    """A marker of a `TestCase` holds for its tests, asynchronous ones too; its own failures stand."""
    result = play("""
@pytest.fixture(autouse=True)
def with_gpu(request, gpu):
    if request.cls: request.cls.gpu = gpu

@pytest.mark.limit_vram("8 MiB")
class Plain(unittest.TestCase):
    def test_over(self): self.gpu.alloc(9 * MIB)
    def test_own(self):
        self.gpu.alloc(9 * MIB)
        self.fail("its own")
    def test_below(self): self.gpu.alloc(7 * MIB)

@pytest.mark.limit_vram("8 MiB")
class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_over(self): self.gpu.alloc(10 * MIB)
""")

    result.assert_outcomes(passed=1, failed=3)
    text = str(result.stdout)
    assert "AssertionError: its own" in text
    assert text.count("is above the limit of 8.00 MiB") == 2


def marked(*args: Any, **kwargs: Any) -> pytest.Mark:
    return pytest.Mark("limit_vram", args, kwargs, _ispytest=True)


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        (marked("6 GB of"), "peak of limit_vram must be a size such as 20GiB"),
        (marked("6 GB"), "did you mean 6GiB?"),
        (marked(-1), "must be a size with its unit"),
        (marked(math.nan), "must be a size with its unit"),
        (marked(10**400), "must be a size with its unit"),
        (marked("\u0661 GiB \x1b[31m"), "must be a size"),
        (marked(bool(1)), "must be a size with its unit"),
        (marked(None), "must be a size with its unit"),
        (marked(), "limit_vram needs a limit"),
        (marked(1, 2), "limit_vram takes one peak, not 2"),
        (marked(1, peak=2), "limit_vram takes one peak, not 2"),
        (marked("1 GiB", lefft=1), "takes peak, left and device, not lefft"),
        (marked("1 GiB", left="much"), "left of limit_vram must be a size"),
        (marked("1 GiB", device="gpu0"), "is called 'cuda:0'"),
        (marked("1 GiB", device="cuda:0,cuda:1"), "takes one device"),
    ],
)
def test_a_limit_that_cannot_be_read_is_told(marker: pytest.Mark, message: str) -> None:
    """The message says what is allowed, on one line."""
    with pytest.raises(OptionError) as caught:
        limits_of([marker])

    assert message in str(caught.value)
    assert str(caught.value).isprintable()


def test_a_limit_that_cannot_be_read_is_an_error_of_collection(play: Play) -> None:
    """One sentence names the test, and nothing of its file is run."""
    result = play("""
@pytest.mark.limit_vram("6 GB of")
class TestAll:
    def test_it(self): pass
""")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["test_it.py::TestAll::test_it: peak of limit_vram must be a size*"]
    )
    assert "Traceback" not in str(result.stdout)


def test_a_peak_survives_the_users_own_reset(play: Play) -> None:
    """A reset of the counter within a test hides nothing, and the user reads what the user would."""
    play("""
@pytest.mark.limit_vram("8 MiB")
def test_it(gpu):
    gpu.free(gpu.alloc(9 * MIB))
    gpu.user_reset(0)
    gpu.free(gpu.alloc(2 * MIB))
    assert gpu.user_stats(0)["allocated_bytes"]["all"]["peak"] == 2 * MIB
""").stdout.fnmatch_lines(["*peak 9.00 MiB is above the limit*"])


def test_a_peak_that_is_a_lower_bound_is_called_so(play: Play) -> None:
    """Without the certificate of an exact peak a limit can be exceeded, and "≥" says what is known."""
    play.allocator.counts_allocations = False
    play.allocator.alloc(MIB)  # of a device that is in use a counter is reset
    assert "peak ≥ 9.00 MiB is above the limit of 8.00 MiB" in play.text("""
@pytest.mark.limit_vram("8 MiB")
def test_it(gpu): gpu.alloc(9 * MIB)
""")


def test_nothing_asks_cuda_before_the_test_does(play: Play) -> None:
    """A test that initialises CUDA itself is measured from nothing; before, no function of CUDA is called."""
    play.allocator = FakeAllocator(initialized=False)
    play.use(CudaAllocator({"torch": FakeTorch(play.allocator)}))
    result = play("""
def test_before(gpu, memory):
    assert memory.peak() >= 0
    assert not gpu.calls

@pytest.mark.limit_vram("8 MiB")
def test_it(gpu):
    gpu.initialized = True
    gpu.free(gpu.alloc(9 * MIB))
""")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*peak 9.00 MiB is above the limit*"])


Messages = dict[str, str]
"""The message of a failed test by its marker; it is empty where the test passes."""

HOST = FakeSource([Device("cpu", "CPU")], [Series("cpu", "allocated"), Series("cpu", "reserved")])


class Growing(FakeSource):
    """A heap that grows by 16 MiB with each reading."""

    def __init__(self) -> None:
        super().__init__(HOST.devices, HOST.series, [0.0, 0.0])

    def read(self, now: float) -> list[float]:
        self.values[0] += 16 * MIB
        return list(self.values)


@pytest.mark.parametrize(
    ("machine", "usual", "strict"),
    [
        (
            "bare",
            {"'8 MiB'": "peak ≥ 16.0 MiB is above the limit of 8.00 MiB in this process' private memory",
             "left='8 MiB'": "left 16.0 MiB is above the limit of 8.00 MiB in this process' private memory",
             "'8 MiB', device='cuda:0'": ""},
            {"'64 MiB'": "there is no GPU to measure the limit on"},
        ),
        (
            "gpu",
            {"'8 MiB'": "", "'8 MiB', device='cpu'": "in this process' private memory"},
            {"'64 MiB'": "", "'64 MiB', device='cuda:5'": "there is no cuda:5 to measure the limit on"},
        ),
    ],
)  # fmt: skip
def test_without_a_gpu_the_heap_counts(
    play: Play, monkeypatch: pytest.MonkeyPatch, machine: str, usual: Messages, strict: Messages
) -> None:
    """A test that does not use the GPU there is, is below any limit. Without one, the heap stands in for it.

    Or the test fails, where `--hfmem-strict` asks for it.
    """
    monkeypatch.setattr("hfmem_widget.ci.runner.HostSource", Growing)
    play.allocator = FakeAllocator(initialized=False)
    driver = FakeSource([Device("cuda:0", "NVIDIA")], [Series("cuda:0", "device_used")])
    play.use(play.allocator, *([driver] if machine == "gpu" else []), HOST)
    for expected, args in ((usual, ()), (strict, ("--hfmem-strict",))):
        source = ""
        for at, marker in enumerate(expected):
            source += f"@pytest.mark.limit_vram({marker})\ndef test_{at}(): pass\n\n"
        text = play.text(source, "-rA", *args)
        assert expected
        for at, failed in enumerate(expected.values()):
            assert f"{'FAILED' if failed else 'PASSED'} test_it.py::test_{at}" in text
            assert failed in text


@pytest.mark.parametrize("broken", ["begin", "end", "figures"])
def test_our_fault_fails_no_test(play: Play, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """The test is run as without us, and the summary says that it was not measured."""
    monkeypatch.setattr(Memory, broken, Mock(side_effect=RuntimeError("a fault of ours")))
    result = play(
        """
@pytest.mark.limit_vram("1 MiB")
def test_it(gpu): gpu.alloc(9 * MIB)
""",
        "--hfmem",
    )

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["1 test could not be measured*test_it.py::test_it"])
    assert process.this.monitor is not None


def test_the_fixture_reads_the_tests_memory(play: Play) -> None:
    """It has figures of the test so far, in bytes, and of each part by itself."""
    play("""
def test_it(gpu, memory):
    held = gpu.alloc(4 * MIB)
    with memory.span() as part:
        gpu.free(gpu.alloc(8 * MIB))
        assert part.left() == part.left("cuda:1") == 0
    assert (part.peak(), part.left()) == (8 * MIB, 0)
    assert memory.left("cuda:1") == part.peak("cuda:1") == 0
    gpu.alloc(1 * MIB, 1)
    assert memory.peak() == memory.peak("cuda:0") == 12 * MIB
    assert memory.left() == 4 * MIB and memory.left("cuda:1") == MIB
    assert memory.reserved() == 12 * MIB
    assert memory.certainty() == "exact"
    gpu.free(held)
    assert memory.left() == 0
    with pytest.raises(ValueError, match="no device 'cuda:9' here, only cuda:0, cuda:1, cpu"):
        memory.peak("cuda:9")
""").assert_outcomes(passed=1)


def test_a_fixture_of_the_users_own_stands(play: Play) -> None:
    """A project that has a fixture called `memory` keeps it."""
    play("""
@pytest.fixture
def memory(): return "its own"

def test_it(memory): assert memory == "its own"
""").assert_outcomes(passed=1)

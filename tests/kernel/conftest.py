"""Kernels for tests: one for each, since the package patches the process it is loaded into.

Where that does not matter, the tests of a file share one, and each begins with nothing left of the others. A
shared kernel has imported torch and transformers as it begins where a file says ``WITH_TORCH = True``.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.browser.kernels import Kernels
from tests.kernel.culprits import begin_anew
from tests.kernel.drive import KERNEL_PYTHON, Kernel, ipykernel_of

StartKernel = Callable[..., Kernel]

TRANSFORMERS = (
    "torch._dynamo",
    "accelerate",
    "transformers.core_model_loading",
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.trainer",
)
"""What a kernel with torch and transformers has imported as it begins."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.kernel)


@pytest.fixture
def start_kernel() -> Iterator[StartKernel]:
    """Return a function that starts a kernel, with `Kernel`'s arguments; all are shut down at the end."""
    with ExitStack() as started:
        yield lambda *args, **kwargs: started.enter_context(Kernel(*args, **kwargs))


@pytest.fixture
def kernel(start_kernel: StartKernel, bare_command: list[str]) -> Kernel:
    """Return a kernel of its own, without torch."""
    return start_kernel(command=bare_command)


@contextmanager
def command_of(home: Path, *modules: str) -> Iterator[list[str]]:
    """Provide a process from which kernels are forked; those of a host's Python start by themselves."""
    if sys.executable != KERNEL_PYTHON:
        yield ipykernel_of()
    else:
        with Kernels(home, "python3", *modules) as kernels:
            kernels.start()
            yield kernels.command


@pytest.fixture(scope="session")
def bare_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the command for a kernel that has imported what every kernel needs."""
    with command_of(tmp_path_factory.mktemp("bare")) as command:
        yield command


@pytest.fixture(scope="session")
def torch_command(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Return the command for a kernel that has imported torch and transformers."""
    with command_of(tmp_path_factory.mktemp("torch"), *TRANSFORMERS) as command:
        yield command


@pytest.fixture(scope="module")
def shared_kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Return one kernel for all tests of a file."""
    with_torch = getattr(request.module, "WITH_TORCH", False)
    command = request.getfixturevalue("torch_command" if with_torch else "bare_command")
    with Kernel(command=command) as kernel:
        yield kernel


@pytest.fixture
def reloaded(shared_kernel: Kernel) -> Kernel:
    """Return the file's kernel without the variables of the test before, and with the extension reloaded."""
    for cell in ("%reset -f", "%reload_ext hfmem_widget"):
        assert shared_kernel.run(cell).status == "ok"
    return shared_kernel


@pytest.fixture
def fresh(shared_kernel: Kernel) -> Kernel:
    """Return the file's kernel without traces of the test before, and with the code of the culprits."""
    begin_anew(shared_kernel)
    return shared_kernel


@pytest.fixture
def with_torch(reloaded: Kernel) -> Kernel:
    assert reloaded.run("import torch").status == "ok"
    return reloaded

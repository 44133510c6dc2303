from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell

from hfmem_widget.monitor.shared import release_monitor


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    """Return an IPython with the extension loaded."""
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext hfmem_widget")
    yield shell
    shell.run_cell("%unload_ext hfmem_widget")
    InteractiveShell.clear_instance()
    release_monitor()

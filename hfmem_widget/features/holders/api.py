"""``hfmem_widget.holders``: which names of a notebook or script still hold memory."""

from collections.abc import Mapping
from typing import Any

from hfmem_widget.errors import OptionError
from hfmem_widget.monitor.shared import read_once
from hfmem_widget.monitor.subjects import main_variables
from hfmem_widget.sources.heap.model import Holders
from hfmem_widget.sources.heap.roots import kernel_roots
from hfmem_widget.sources.heap.scan import scan
from hfmem_widget.text import plain
from hfmem_widget.view.front_end import running_shell


def holders(
    namespace: Mapping[str, object] | None = None,
    allocated: Mapping[str, float] | None = None,
    *,
    device: str = "",
) -> Holders:
    """Return the names that still hold memory, biggest first.

    The notebook's variables, its outputs, its last error and the user's own modules are followed to every
    tensor that they reach. No code of these objects is run, and nothing is kept alive.

    Parameters
    ----------
    namespace : mapping of str to object, optional
        Variables to begin with; by default, those of the notebook or of the script.
    allocated : mapping of str to float, optional
        Allocated bytes by device; by default, they are read now.
    device : str, optional
        The key of the only device to list, such as "cuda:0".

    Returns
    -------
    Holders
        In a notebook, a table.

    Raises
    ------
    OptionError
        If there is no such device, or `namespace` or `allocated` is not a mapping.

    Examples
    --------
    >>> losses = [step(batch) for batch in loader]
    >>> hfmem_widget.holders().rows[0].path
    'losses[0..99]'
    """
    for given, rule in (
        (namespace, "namespace must map names to objects, as globals() does"),
        (allocated, "allocated must map devices to bytes, such as {'cuda:0': 2**30}"),
    ):
        if given is not None and not isinstance(given, Mapping):
            hint = "; pass a device as device=" if isinstance(given, str) else ""
            raise OptionError(f"{rule}, not be {plain(type(given).__name__)}{hint}")
    shell: Any = running_shell()
    if namespace is None:
        namespace = main_variables() if shell is None else shell.user_ns
    if allocated is None:
        session = read_once()
        allocated_series = [series for series in session.series if series.metric == "allocated"]
        allocated = {series.device: session.latest(series.key) for series in allocated_series}
    all_holders = scan(namespace, allocated, kernel_roots(shell), is_thorough=True)
    if not device:
        return all_holders
    devices = sorted({*allocated, *all_holders.explained()})
    if device not in devices:
        raise OptionError(f"no device {plain(device)!r}; available: {', '.join(devices) or 'none'}")
    return all_holders.of(device)

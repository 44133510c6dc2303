"""Begins to follow in a Python that was started below a watch; runs the `sitecustomize` that it hides."""

import os
import sys


class _BeforeTorch:
    """Waits for the import of torch; stays in `sys.meta_path`, from which nothing may go during a search."""

    waits = True

    @classmethod
    def find_spec(cls, name: str, path: object = None, target: object = None) -> object:
        """Attach what follows, and have it find torch."""
        if name != "torch" or not cls.waits:
            return None
        cls.waits = False
        try:
            from hfmem_widget.display import resolve

            return resolve("hfmem_widget.drivers.install:attach")().find_spec(name, path, target)
        except Exception:  # noqa: BLE001  (another environment, without us or with another version)
            return None


def _run_the_hidden() -> None:
    from importlib.machinery import PathFinder

    ours = os.path.realpath(os.path.dirname(__file__))  # noqa: PTH120
    others = [place for place in sys.path if os.path.realpath(place) != ours]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = type(sys)("sitecustomize")
        module.__spec__, module.__file__, module.__loader__ = spec, spec.origin, spec.loader
        spec.loader.exec_module(module)


if "HFMEM_RUN" in os.environ and os.environ.get("HFMEM_CLAIMED") in {None, str(os.getpid())}:
    sys.meta_path.insert(0, _BeforeTorch)  # type: ignore[arg-type]  # its spec is a finder's
_run_the_hidden()

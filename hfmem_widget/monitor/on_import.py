"""An import hook: calls a function with a module as soon as the user's code has imported it."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from hfmem_widget.guard import entry, harmless
from hfmem_widget.unseen import OVER, unseen


class WhenImported(MetaPathFinder):
    """Calls `actions[name](module)` for each named module: now if it is imported, else once it is."""

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], object]]) -> None:
        self._actions = dict(actions)

    def begin(self) -> None:
        """Act on the modules that are imported already, and wait for the others."""
        for name, action in self._actions.items():
            module = sys.modules.get(name)
            if module is not None:
                harmless(action, module)
        sys.meta_path.insert(0, self)

    def end(self) -> None:
        """Stop waiting."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find a module that is waited for, and act once it is executed."""
        # accelerate asks for a module that is not there twice in every step, and the guard takes far longer.
        action = self._actions.get(fullname)
        return None if action is None else self._find(action, fullname, path, target)

    @entry()
    def _find(
        self,
        action: Callable[[ModuleType], object],
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None,
    ) -> ModuleSpec | None:
        # Only later finders: an earlier one that waits for the same module would ask this one again.
        finders = list(sys.meta_path)
        if self not in finders:  # ended meanwhile, by another thread
            return None
        for finder in finders[finders.index(self) + 1 :]:
            # One of before Python 3.4, as old copies of six have it, lacks the method: import passes it over.
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                _act_after(spec, action)
                return spec
        return None


def _act_after(spec: ModuleSpec, action: Callable[[ModuleType], object]) -> None:
    loader = spec.loader
    if loader is None or not hasattr(loader, "exec_module"):
        return
    execute = loader.exec_module

    @unseen
    def execute_then_act(module: ModuleType) -> None:
        try:
            # Each module has a loader of its own, and it is to be as it was.
            vars(loader).pop("exec_module", None)
            execute(module)
            harmless(action, module)
        finally:
            OVER  # noqa: B018

    loader.exec_module = execute_then_act  # type: ignore[method-assign]

"""Objects that Jupyter shows: each names its renderer as text, which is imported only to show it."""

from importlib import import_module
from typing import Any, ClassVar


class Shown:
    """The base of objects that Jupyter shows as the last value of a cell."""

    __slots__ = ()
    _shown_by: ClassVar[str]
    """``"module:function"``: takes the object, returns texts by MIME type."""

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        bundle: dict[str, str] = resolve(self._shown_by)(self)
        return bundle

    def _repr_llm_(self) -> str:
        """Return the text alone: what nteract shows to a language model."""
        return self._repr_mimebundle_().get("text/plain", repr(self))


def resolve(name: str) -> Any:
    """Return the object that a name such as ``"hfmem_widget.view.card:card_bundle"`` refers to."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)

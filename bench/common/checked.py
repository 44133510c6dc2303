"""What keeps a GPU alive for the models that come after one whose batch does not fit it."""

from typing import Any

from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hfmem_widget.errors import OptionError


class Checked(TorchFunctionMode):
    """Raises OptionError where tokens of a batch do not fit a model: after that, no call of CUDA works.

    Labels always fit.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name, message = getattr(func, "__name__", "").removesuffix("_"), ""
        if name == "embedding":
            # torch.embedding, which the other calls, takes them the other way round.
            rows, weight = args[:2] if func is functional.embedding else args[1::-1]
            has_values = rows.numel() and not rows.is_meta
            least, most = (int(rows.amin()), int(rows.amax())) if has_values else (0, -1)
            count = weight.shape[0]
            if least < 0 or most >= count:
                index = least if least < 0 else most
                message = f"an embedding of {count:,} rows is asked for number {index:,}"
        elif name == "masked_scatter" and len(args) == 3:
            whole, mask, source = args
            places, has = int(mask.expand_as(whole).sum()), source.numel()
            if places > has:
                message = f"{places:,} elements stand for an image or a sound, which has {has:,}"
        if message:
            raise OptionError(message)
        return func(*args, **(kwargs or {}))

"""How a training becomes spans; it imports neither torch nor transformers."""

from hfmem_widget.drivers.training.batch import shape_of
from hfmem_widget.drivers.training.model_hooks import ModelHooks, forwards_of
from hfmem_widget.drivers.training.run import TrainingRun, logged, prefix_of

__all__ = [
    "ModelHooks",
    "TrainingRun",
    "forwards_of",
    "logged",
    "prefix_of",
    "shape_of",
]

"""How a training is told apart into spans; it imports neither torch nor transformers."""

from hfmem_widget.drivers.training.batch import shape_of
from hfmem_widget.drivers.training.forwards import Forwards, forwards_of
from hfmem_widget.drivers.training.logged import logged, prefix_of
from hfmem_widget.drivers.training.model_hooks import ModelHooks
from hfmem_widget.drivers.training.run import TrainingRun

__all__ = [
    "Forwards",
    "ModelHooks",
    "TrainingRun",
    "forwards_of",
    "logged",
    "prefix_of",
    "shape_of",
]

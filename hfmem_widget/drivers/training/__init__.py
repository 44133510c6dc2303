"""How a training becomes spans; it imports neither torch nor transformers."""

from hfmem_widget.drivers.training.batch import shape_of
from hfmem_widget.drivers.training.model_hooks import Forwards, ModelHooks
from hfmem_widget.drivers.training.run import TrainingRun, logged, prefix_of

__all__ = [
    "Forwards",
    "ModelHooks",
    "TrainingRun",
    "logged",
    "prefix_of",
    "shape_of",
]

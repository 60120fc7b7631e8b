"""Training: one loop, resumable to the bit, alone or on many machines."""

from .config import TrainConfig
from .evaluate import Evaluation, evaluate
from .loop import train
from .runs import Run

__all__ = ["Evaluation", "Run", "TrainConfig", "evaluate", "train"]

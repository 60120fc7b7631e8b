"""Training: one loop, resumable to the bit, alone or on many machines; files that appear whole."""

from .._io import locked, write_file
from .._json import read_json
from .build import build_model, build_optimizer
from .config import TrainConfig
from .distributed import World
from .evaluate import Evaluation, evaluate
from .loop import train
from .runs import Run, here_and_now

__all__ = [
    "Evaluation",
    "Run",
    "TrainConfig",
    "World",
    "build_model",
    "build_optimizer",
    "evaluate",
    "here_and_now",
    "locked",
    "read_json",
    "train",
    "write_file",
]

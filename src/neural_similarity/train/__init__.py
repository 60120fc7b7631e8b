"""Training: one loop, bit-exact resuming, one or many machines, files written atomically."""

from .._allocator import keep_freed_memory
from .._io import locked, settle, write_file
from .._json import read_json
from .build import build_model, build_optimizer
from .commit import code_version
from .config import TrainConfig
from .distributed import World
from .evaluate import Evaluation, evaluate
from .ingredients.recipes import RECIPES, recipe_settings
from .loop import train
from .runs.environment import here_and_now
from .runs.run import Run

__all__ = [
    "RECIPES",
    "Evaluation",
    "Run",
    "TrainConfig",
    "World",
    "build_model",
    "build_optimizer",
    "code_version",
    "evaluate",
    "here_and_now",
    "keep_freed_memory",
    "locked",
    "read_json",
    "recipe_settings",
    "settle",
    "train",
    "write_file",
]

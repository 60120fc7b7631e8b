"""A run is a folder: what it holds, who may write into it, and several runs to compare."""

from .comparisons import check_comparison, read_comparison, write_comparison
from .environment import here_and_now
from .run import Run
from .run_folder import RunFolder

__all__ = [
    "Run",
    "RunFolder",
    "check_comparison",
    "here_and_now",
    "read_comparison",
    "write_comparison",
]

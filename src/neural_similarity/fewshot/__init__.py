"""Learning from few images: one method a file, behind one small protocol."""

from . import proto, ridge
from .learner import Learner, batch_statistics
from .protocol import FeatureMethod, Images, Method, Tasks, as_tasks, query_labels
from .registry import create_method, list_methods, register_method

__all__ = [
    "FeatureMethod",
    "Images",
    "Learner",
    "Method",
    "Tasks",
    "as_tasks",
    "batch_statistics",
    "create_method",
    "list_methods",
    "proto",
    "query_labels",
    "register_method",
    "ridge",
]

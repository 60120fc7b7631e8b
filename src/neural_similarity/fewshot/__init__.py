"""Learning from few images: methods behind one small protocol, trained and tested on episodes."""

from . import methods
from .batches import Images, Tasks, as_tasks, query_labels
from .config import FewShotConfig
from .evaluate import Evaluator, Result, evaluate_method
from .methods import FeatureMethod, Method, create_method, list_methods, register_method
from .network import FewShotNetwork, batch_statistics
from .runs import FewShotRun, Trial
from .task import train_method

__all__ = [
    "Evaluator",
    "FeatureMethod",
    "FewShotConfig",
    "FewShotNetwork",
    "FewShotRun",
    "Images",
    "Method",
    "Result",
    "Tasks",
    "Trial",
    "as_tasks",
    "batch_statistics",
    "create_method",
    "evaluate_method",
    "list_methods",
    "methods",
    "query_labels",
    "register_method",
    "train_method",
]

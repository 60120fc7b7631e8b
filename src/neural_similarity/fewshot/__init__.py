"""Learning from few images: one method a file, behind one small protocol."""

from . import (
    baseline_pp,
    dynamic,
    finetune,
    maml,
    matching,
    meta_dynamic,
    meta_static,
    nearest,
    proto,
    relation,
    ridge,
    static,
)
from .config import FewShotConfig
from .evaluate import Evaluator, Result, evaluate_method
from .learner import Learner, batch_statistics
from .protocol import FeatureMethod, Images, Method, Tasks, as_tasks, query_labels
from .registry import create_method, list_methods, register_method
from .runs import FewShotRun, Trial
from .training import train_method

__all__ = [
    "Evaluator",
    "FeatureMethod",
    "FewShotConfig",
    "FewShotRun",
    "Images",
    "Learner",
    "Method",
    "Result",
    "Tasks",
    "Trial",
    "as_tasks",
    "baseline_pp",
    "batch_statistics",
    "create_method",
    "dynamic",
    "evaluate_method",
    "finetune",
    "list_methods",
    "maml",
    "matching",
    "meta_dynamic",
    "meta_static",
    "nearest",
    "proto",
    "query_labels",
    "register_method",
    "relation",
    "ridge",
    "static",
    "train_method",
]

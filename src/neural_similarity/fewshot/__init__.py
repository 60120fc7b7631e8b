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
from .adapters import AdaptedNetwork
from .backbone_files import save_backbone
from .backbones import Backbone, list_backbones, load_backbone
from .classifier import FewShotClassifier
from .config import FewShotConfig
from .cross_validation import CrossValidation
from .evaluate import Evaluator, Result, evaluate_method
from .learner import Learner, batch_statistics
from .preprocessing import Preprocessing
from .protocol import FeatureMethod, Images, Method, Tasks, as_tasks, query_labels
from .registry import create_method, list_methods, register_method
from .runs import FewShotRun, Trial
from .training import train_method

__all__ = [
    "AdaptedNetwork",
    "Backbone",
    "CrossValidation",
    "Evaluator",
    "FeatureMethod",
    "FewShotClassifier",
    "FewShotConfig",
    "FewShotRun",
    "Images",
    "Learner",
    "Method",
    "Preprocessing",
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
    "list_backbones",
    "list_methods",
    "load_backbone",
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
    "save_backbone",
    "static",
    "train_method",
]

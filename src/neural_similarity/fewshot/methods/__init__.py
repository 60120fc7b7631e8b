"""Few-shot methods, one per file; importing this package registers all of them.

They are grouped by what an episode does: ``metric`` compares queries with support images,
``classifiers`` fits a classifier on features, ``gradient`` takes steps through the network,
``similarity`` has the paper's methods, and ``transductive`` those that look at all queries
together. ``base`` defines what a method is.
"""

from .base import FeatureMethod, Method
from .classifiers import baseline_pp, laplace, linear, r2d2, ridge
from .gradient import finetune, leo, maml
from .metric import feat, matching, nearest, proto, relation, simpleshot, tadam
from .registry import create_method, list_methods, register_method
from .similarity import dynamic, meta_dynamic, meta_static, static
from .transductive import bd_cspn, laplacianshot, pt_map, tim, transductive_finetune

__all__ = [
    "FeatureMethod",
    "Method",
    "baseline_pp",
    "bd_cspn",
    "create_method",
    "dynamic",
    "feat",
    "finetune",
    "laplace",
    "laplacianshot",
    "leo",
    "linear",
    "list_methods",
    "maml",
    "matching",
    "meta_dynamic",
    "meta_static",
    "nearest",
    "proto",
    "pt_map",
    "r2d2",
    "register_method",
    "relation",
    "ridge",
    "simpleshot",
    "static",
    "tadam",
    "tim",
    "transductive_finetune",
]

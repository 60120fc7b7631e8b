"""Few-shot methods, one a file; importing this package registers all of them.

They are in rooms by what an episode does: ``metric`` compares queries with support images,
``classifiers`` fit a classifier on features, ``gradient`` takes steps through the network, and
``similarity`` has the paper's own methods. ``base`` says what a method is.
"""

from .base import FeatureMethod, Method
from .classifiers import baseline_pp, laplace, linear, r2d2, ridge
from .gradient import finetune, maml
from .metric import matching, nearest, proto, relation
from .registry import create_method, list_methods, register_method
from .similarity import dynamic, meta_dynamic, meta_static, static

__all__ = [
    "FeatureMethod",
    "Method",
    "baseline_pp",
    "create_method",
    "dynamic",
    "finetune",
    "laplace",
    "linear",
    "list_methods",
    "maml",
    "matching",
    "meta_dynamic",
    "meta_static",
    "nearest",
    "proto",
    "r2d2",
    "register_method",
    "relation",
    "ridge",
    "static",
]

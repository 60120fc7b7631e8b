"""Few-shot methods, one a file; importing this package registers all of them."""

from . import (
    baseline_pp,
    dynamic,
    finetune,
    laplace,
    linear,
    maml,
    matching,
    meta_dynamic,
    meta_static,
    nearest,
    proto,
    r2d2,
    relation,
    ridge,
    static,
)
from .base import FeatureMethod, Method
from .registry import create_method, list_methods, register_method

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

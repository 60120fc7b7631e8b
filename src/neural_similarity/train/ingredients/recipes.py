"""Recipes: settings under one name, for ``nsl train --recipe``.

A recipe only provides settings. The user's settings take precedence, and a run stores the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ... import _check

__all__ = ["RECIPES", "recipe_settings", "with_recipe"]

Chosen = Mapping[str, Any]

_AUTHORS_NORMS = {
    "norm_decay": 5e-4,
    "norm_momentum": 0.001,  # a decay of 0.999 in TensorFlow's terms
    "norm_eps": 1e-3,
    "norm_start": "zero",
    "predictor_momentum": 0.001,
}
_AUTHORS_LOSS = {"loss_floor": 1e-4, "label_smoothing": 0.01}


def authors(chosen: Chosen) -> dict[str, Any]:
    """The authors' code for CIFAR-10 and CIFAR-100 (Tables 1 to 4)."""
    # Their static diagonal M does not decay; the default for an unconstrained M is theirs.
    unconstrained = chosen.get("structure") == "unconstrained"
    has_start = chosen.get("predictor", "sphere") in ("sphere", "patch", "conv")
    return {
        "batch_size": 128,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "steps": 42_500,
        "schedule": "authors",
        "augmentation": "usual",
        "padding": "mirror",
        "pixels": "raw",
        **_AUTHORS_LOSS,
        **_AUTHORS_NORMS,
        **({} if unconstrained else {"similarity_decay": 0.0}),
        **({"predictor_options": {"start": "authors"}} if has_start else {}),
    }


def authors_attention(chosen: Chosen) -> dict[str, Any]:
    """The authors' code for self-attention in a SphereNet (Table 7)."""
    model = chosen.get("model", "spherenet9_attention")
    attention = {"attention": [1, 2], "query_relu": True} if "attention" in model else {}
    return {
        "model": model,
        "batch_size": 128,
        "optimizer": "adam",
        "lr": 1e-3,
        "weight_decay": 5e-4,
        "filter_decay": 0.0,
        "filter_orthogonality": 2e-4,
        "steps": 64_000,
        "schedule": "paper",
        "augmentation": "flip",
        "pixels": "centred",
        **_AUTHORS_LOSS,
        **_AUTHORS_NORMS,
        "options": {**attention, "classifier_bias": False},
    }


RECIPES: dict[str, Callable[[Chosen], dict[str, Any]]] = {
    "authors": authors,
    "authors-attention": authors_attention,
}
"""By name: functions from the user's settings to those of the recipe."""


def recipe_settings(name: str, chosen: Chosen) -> dict[str, Any]:
    """The settings of a recipe; some depend on the user's settings.

    The length of training is a single setting: if the user sets ``epochs``, there are no steps.

    Example:
        >>> recipe_settings("authors", {})["padding"]
        'mirror'
    """
    _check.known_name("configuration", "recipe", name, RECIPES)
    settings = RECIPES[name](chosen)
    if "epochs" in chosen and "steps" not in chosen:
        del settings["steps"]
    return settings


def with_recipe(name: str, chosen: Chosen) -> dict[str, Any]:
    """The user's settings, completed by those of a recipe.

    Example:
        >>> with_recipe("authors", {"lr": 0.05, "predictor_options": {"hidden": 8}})["lr"]
        0.05
    """
    result = recipe_settings(name, chosen)
    for setting, value in chosen.items():
        both = isinstance(value, dict) and isinstance(result.get(setting), dict)
        result[setting] = {**result[setting], **value} if both else value
    return result

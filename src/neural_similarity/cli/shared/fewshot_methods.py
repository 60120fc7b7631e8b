"""The few-shot methods, one line each, for ``nsl fewshot --help``.

They are written here because help must appear at once, and importing the methods takes seconds.
"""

from __future__ import annotations

__all__ = ["METHOD_LINES", "methods_epilog"]

METHOD_LINES: dict[str, str] = {
    "baseline_pp": "a new cosine classifier",
    "bd_cspn": "nearest prototype by cosine; queries rectify the prototypes (transductive)",
    "dynamic": "the paper's dynamic network, and a new classifier",
    "feat": "nearest prototype; prototypes adapt to each other by attention",
    "finetune": "a new linear classifier, or the whole network",
    "laplace": "logistic regression; the base-class classifier gives the prior",
    "laplacianshot": "nearest prototype; neighbouring queries agree (transductive)",
    "leo": "a classifier decoded from a latent code, tuned by gradient steps",
    "linear": "logistic regression on unit-length features",
    "maml": "gradient steps on all parameters, from a learned start",
    "matching": "attention to support images",
    "meta_dynamic": "dynamic, with predictors that adapt",
    "meta_static": "static, from a learned start",
    "nearest": "the nearest support image",
    "proto": "the nearest prototype",
    "pt_map": "class centres by optimal transport of queries (transductive)",
    "r2d2": "ridge regression, differentiated in training",
    "relation": "a network compares query and class",
    "ridge": "ridge regression on unit-length features",
    "simpleshot": "the nearest prototype of centred, unit-length features",
    "static": "the paper's static similarities, and a new classifier",
    "tadam": "the nearest prototype, in a network conditioned on the task",
    "tim": "prototypes that make query labels confident and balanced (transductive)",
    "transductive_finetune": "the whole network, for confident query labels (transductive)",
}


def methods_epilog() -> str:
    """All methods, for the end of a help text; ``\\b`` keeps the lines apart."""
    lines = [f"  {name:22}{line}" for name, line in METHOD_LINES.items()]
    last = (
        "A prototype is the mean feature of a class. A transductive method sees all queries of an "
        "episode; others classify each alone."
    )
    return "\n".join(("\b", "Methods:", *lines, "", last))

"""Table 3: can all layers share one predictor?"""

from __future__ import annotations

from dataclasses import replace

from neural_similarity.train import TrainConfig

from .base import Table, rows_of
from .table4 import CIFAR10, IN_WORDS, ON_CIFAR10

_rows, row = rows_of("table3", CIFAR10)


@row()
def dynamic_shared(base: TrainConfig) -> TrainConfig:
    """Dynamic NSN (Shared)"""
    return replace(base, similarity="dynamic", shared=True)


TABLE = Table(
    name="table3",
    title="Shared and disjoint predictors, CIFAR-10",
    rows=(ON_CIFAR10.row("cnn"), *_rows, ON_CIFAR10.row("dynamic-diagonal")),
    metric="error",
    baseline="cnn",
    paper={"cnn": 7.78, "dynamic-shared": 7.20, "dynamic-diagonal": 6.85},
    budgets=IN_WORDS,
    pairs=(("dynamic-diagonal", "dynamic-shared"),),
)
TABLES = (TABLE,)

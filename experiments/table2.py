"""Table 2: does it help to learn the kernel's shape together with the similarity?"""

from __future__ import annotations

from dataclasses import replace

from neural_similarity.train import TrainConfig

from .rows import Table, rows_of
from .table4 import CIFAR10, IN_WORDS, ON_CIFAR10

_rows, row = rows_of("table2", CIFAR10)


@row()
def static_joint(base: TrainConfig) -> TrainConfig:
    """Static NSN (J)"""
    return replace(base, similarity="static", structure="kernel_shape")


@row()
def dynamic_joint(base: TrainConfig) -> TrainConfig:
    """Dynamic NSN (J)"""
    return replace(base, similarity="dynamic", structure="kernel_shape")


TABLE = Table(
    name="table2",
    title="Joint learning of kernel shape and similarity, CIFAR-10",
    rows=(
        ON_CIFAR10.row("cnn"),
        ON_CIFAR10.row("static-diagonal"),
        _rows[0],
        ON_CIFAR10.row("dynamic-diagonal"),
        _rows[1],
    ),
    metric="error",
    baseline="cnn",
    paper={
        "cnn": 7.78,
        "static-diagonal": 7.15,
        "static-joint": 6.92,
        "dynamic-diagonal": 6.85,
        "dynamic-joint": 6.64,
    },
    budgets=IN_WORDS,
)
TABLES = (TABLE,)

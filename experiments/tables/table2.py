"""Table 2: does it help to learn the kernel's shape together with the similarity?"""

from __future__ import annotations

from dataclasses import replace

from neural_similarity.train import TrainConfig

from .base import Table, rows_of
from .table4 import CIFAR10, IN_WORDS, ON_CIFAR10

_rows, row = rows_of("table2", CIFAR10)


# The paper gives neither the initial D_r nor α. Ours starts at one. At the short budget it fell
# below neither 0.5 nor 0.9: no shape was learned. After an epoch of the static row, with seed 100
# and `--set validation=0.1`, it was between 0.90 and 1.18, and below 0.95 for 11 of 81 taps.
_SHAPE = {"threshold": 0.95}


@row()
def static_joint(base: TrainConfig) -> TrainConfig:
    """Static NSN (J)

    The paper does not give the threshold of the kernel shape: ours is 0.95, for parameters that
    start at one and do not decay.
    """
    return _joint(base, "static")


@row()
def dynamic_joint(base: TrainConfig) -> TrainConfig:
    """Dynamic NSN (J)

    The same threshold.
    """
    return _joint(base, "dynamic")


def _joint(base: TrainConfig, similarity: str) -> TrainConfig:
    return replace(base, similarity=similarity, structure="kernel_shape", structure_options=_SHAPE)


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
    pairs=(("static-joint", "static-diagonal"), ("dynamic-joint", "dynamic-diagonal")),
)
TABLES = (TABLE,)

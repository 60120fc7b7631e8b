"""Table 7 (Appendix B): self-attention as a global similarity, in a CNN and in a SphereNet."""

from __future__ import annotations

from dataclasses import replace

from neural_similarity.train import TrainConfig

from .base import Table, rows_of, with_recipe

PAPER = TrainConfig(
    model="cnn9_wide", data="cifar10", optimizer="adam", epochs=100, schedule="cosine",
    filter_orthogonality=2e-4, log_every=100,
)  # fmt: skip
SHORT = replace(
    PAPER, options={"widths": [24, 36, 48], "hidden": 64}, epochs=5, schedule="onecycle",
    log_every=50,
)  # fmt: skip
SMOKE = replace(
    SHORT, data="digits", options={"widths": [8, 8, 8], "hidden": 8}, steps=3, batch_size=32,
    log_every=1,
)  # fmt: skip
BUDGETS = {"smoke": SMOKE, "short": SHORT, "paper": PAPER}
_RECIPE = "authors-attention"
_rows, row = rows_of("table7", BUDGETS)


@row()
def cnn(base: TrainConfig) -> TrainConfig:
    """CNN

    The paper augments mildly but does not say how. Here images are padded, cropped and flipped, as
    in the other tables.
    """
    return replace(base, filter_orthogonality=0.0)


@row()
def cnn_attention(base: TrainConfig) -> TrainConfig:
    """CNN w/ self-attention"""
    return replace(base, model="cnn9_wide_attention", filter_orthogonality=0.0)


@row()
def spherenet(base: TrainConfig) -> TrainConfig:
    """SphereNet"""
    return replace(base, model="spherenet9")


@row()
def spherenet_attention(base: TrainConfig) -> TrainConfig:
    """SphereNet w/ self-attention"""
    return replace(base, model="spherenet9_attention")


@row()
def cnn_recipe(base: TrainConfig) -> TrainConfig:
    """CNN, authors' recipe †

    Loss, horizontal flips as the only augmentation, pixel scaling, BatchNorm, weight decay and
    learning rate of the authors' code (`nsl train --recipe authors-attention`), and a classifier
    without bias. Its BatchNorm statistics average over a thousand steps, which is long for the
    short budget.
    """
    recipe = with_recipe(replace(base, model="cnn9_wide"), _RECIPE, PAPER)
    return replace(recipe, filter_orthogonality=0.0)


@row()
def spherenet_attention_recipe(base: TrainConfig) -> TrainConfig:
    """SphereNet w/ self-attention, authors' recipe †

    The same recipe. As in the authors' code, attention comes after two of the poolings and its
    query has a ReLU.
    """
    return with_recipe(replace(base, model="spherenet9_attention"), _RECIPE, PAPER)


TABLE = Table(
    name="table7",
    title="Self-attention as a global similarity, CIFAR-10",
    rows=tuple(_rows),
    metric="error",
    baseline="cnn",
    paper={
        "cnn": 100 - 90.86,
        "cnn-attention": 100 - 90.69,
        "spherenet": 100 - 91.31,
        "spherenet-attention": 100 - 91.76,
    },
    budgets={
        "smoke": "three steps on digits",
        "short": "24, 36 and 48 filters and 64 units, 5 epochs, one-cycle learning rate",
        "paper": "128, 192 and 256 filters, 100 epochs (the paper does not say how many); the "
        "authors' recipe has 64,000 steps",
    },
    notes=("† Not in the paper.",),
    pairs=(("spherenet-attention-recipe", "cnn-recipe"),),
)
TABLES = (TABLE,)

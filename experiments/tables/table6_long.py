"""Table 6 at the budget ``long``: baselines trained as their authors did, as far as hours allow.

At the short budget, methods that learn from episodes see a fraction of the training behind their
published numbers. Here every row has 64 filters (MAML 32, as its authors) and at most about three
hours of one core. Networks that learn from images end earlier if ten validations bring no higher
accuracy; their learning rate falls all the time, so that an early end is one at a low rate. The
others have no weight decay, and a rate that follows a cosine to the end: halved after each tenth,
it would add up to three fifths of the authors' sum for ProtoNet, a quarter for MatchingNet, and a
twentieth for RelationNet. The recipes:

- ProtoNet (https://github.com/jakesnell/prototypical-networks): Adam at 0.001, 20 classes per
  episode for five shots (Snell et al., 2017). Theirs halves the rate every 2,000 episodes until
  the validation loss no longer falls; the cosine adds up to half as much again. Theirs has 15
  queries for one shot; ours 7.
- R2D2 (https://github.com/bertinetto/r2d2): 240 images per episode of 20 classes, Adam at 0.005.
  Theirs halves the rate every 2,000 episodes, and has 1 to 9 shots per episode, a fixed λ, and
  dropout; ours 5 shots, a learned λ, and crops and flips instead. Theirs classifies the maps of the
  last two layers together, the last of them not halved (1,152 features); ours the last (256).
- RelationNet (https://github.com/floodsung/LearningToCompare_FSL): 5 classes, 10 queries each, Adam
  at 0.001, gradients clipped at 0.5, a network that pools twice. Theirs has 500,000 episodes, no
  padding in two of four convolutions and in the head, and batch statistics in tests, which ours has
  in a row of its own.
- MatchingNet (https://github.com/wyharveychen/CloserLookFewShot): 5 classes, Adam at 0.001, 1e-6
  added to probabilities, 40,000 episodes. Theirs has 16 queries and full context embeddings; ours
  15 and none.
- MAML (https://github.com/cbfinn/maml): second order, 5 steps in training and 10 in tests, inner
  rate 0.05 for the mean loss (0.01 for theirs, which is five times the mean), 4 tasks per step,
  Adam at 0.001; 240,000 tasks on mini-ImageNet, of which we can afford a sixth.
- The meta-learned static NSN: 4,000 tasks, ten times those of the short budget, where accuracy on
  the validation classes was highest after a hundred.
- Networks that learn from images: as at the short budget, for longer.
- Published numbers for one shot are for networks trained with one shot, except those of R2D2. Four
  methods have a row that trains with one: ProtoNet with 30 classes, RelationNet with 15 queries, as
  their authors; R2D2 with as many images; MAML, whose tasks are cheaper then, with three times as
  many tasks, and once more without augmentation, as its authors.
- One M per image has one row, with the default gate: the study of equal cost does not separate the
  gates.

The caps were chosen by the seconds per step on one thread, before freed memory was kept
(``keep_freed_memory``), where a step on 128 images took 0.28: dynamic 0.33, one M per image 0.29,
ProtoNet 0.83, R2D2 0.56, RelationNet 0.21, MatchingNet 0.15, the meta-learned static NSN 2.3.
MAML's cap was chosen later, on a machine where its step takes 0.55 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neural_similarity.fewshot import FewShotConfig

from .base import Row

__all__ = ["LONG", "one_shot_rows"]

_IMAGES = FewShotConfig(
    method="finetune", data="cifar-fs", options={"width": 64}, epochs=80, schedule="halving",
    patience=10, log_every=100,
)  # fmt: skip
_ONLY_TESTED = replace(_IMAGES, epochs=0)
_ON_EPISODES = replace(_IMAGES, weight_decay=0.0, schedule="cosine", patience=None)


def _episodes(method: str, way: int, steps: int, **changes: Any) -> FewShotConfig:
    """Training on episodes, with 40 validations."""
    settings: dict[str, Any] = {
        "train_way": way,
        "steps": steps,
        "epoch_steps": steps // 40,
        **changes,
    }
    return replace(_ON_EPISODES, method=method, **settings)


def _tasks(method: str, steps: int, tasks: int, **changes: Any) -> FewShotConfig:
    """Training through gradient steps, with 20 validations."""
    return replace(
        _ON_EPISODES, method=method, steps=steps, tasks=tasks, epoch_steps=steps // 20,
        log_every=20, **changes,
    )  # fmt: skip


_RELATION = _episodes(
    "relation", 5, 50_000, train_query=10, grad_clip=0.5, options={"width": 64, "poolings": 2},
)  # fmt: skip

LONG: Mapping[str, FewShotConfig] = {
    "finetune": _IMAGES,
    "matching": _episodes("matching", 5, 40_000),
    "proto": _episodes("proto", 20, 12_000),
    "maml": _tasks("maml", 10_000, 4, options={"width": 32}, batch_norm="batch"),
    "relation": _RELATION,
    "relation-batch": replace(_RELATION, epochs=0, steps=None, batch_norm="batch"),
    "baseline-pp": replace(_IMAGES, method="baseline_pp"),
    "ridge": _episodes("r2d2", 20, 16_000, train_query=7, lr=0.005),
    "static": replace(_ONLY_TESTED, method="static", episodes=200),
    "meta-static": _tasks("meta_static", 2_000, 2),
    "meta-static-small": _tasks("meta_static", 2_000, 2, method_options={"inner_lr": 0.02}),
    "dynamic": replace(_IMAGES, method="dynamic", hidden=32),
    "image-both": replace(
        _IMAGES, method="dynamic", predictor="image", over="both", hidden=8,
    ),
}  # fmt: skip
"""Configurations by row."""

_LIKE_PUBLISHED = "Trained and validated with one shot, like the published number for one shot."
_ONE_SHOT = {
    "proto": (
        "ProtoNet", _LIKE_PUBLISHED, _episodes("proto", 30, 16_000, n_shot=1, train_query=7),
    ),
    "maml": (
        "MAML", f"Transductive. {_LIKE_PUBLISHED}",
        replace(LONG["maml"], steps=30_000, epoch_steps=1_500, n_shot=1),
    ),
    "maml-unaugmented": (
        "MAML, without augmentation",
        f"Transductive. {_LIKE_PUBLISHED} Its authors' code does not augment images; our "
        f"other rows crop and mirror them.",
        replace(LONG["maml"], steps=30_000, epoch_steps=1_500, n_shot=1, augment=False),
    ),
    "relation": ("RelationNet", _LIKE_PUBLISHED, replace(_RELATION, n_shot=1, train_query=15)),
    "ridge": (
        "Ridge regression (R2D2)",
        "Trained and validated with one shot; its authors' episodes have 1 to 9.",
        replace(LONG["ridge"], n_shot=1, train_query=11),
    ),
}  # fmt: skip


def one_shot_rows(kept_in: str) -> tuple[Row, ...]:
    """Methods that are also trained with one shot."""
    return tuple(
        Row(
            name=f"{name}-one-shot",
            title=f"{title}, trained with one shot †",
            change=lambda base: base,
            kept_in=kept_in,
            budgets={},
            deviation=deviation,
            own={"long": config},
        )
        for name, (title, deviation, config) in _ONE_SHOT.items()
    )

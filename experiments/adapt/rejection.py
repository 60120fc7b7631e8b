"""How often does ``nsl adapt`` notice that an image is none of the classes?

A task is five classes of photographs. The threshold is the default one of
:func:`~neural_similarity.adapt.fit_rejection`, from the training images alone. Of new images:

- wrongly rejected: those of the five classes;
- rejected, similar: those of other classes of the same pool, such as other birds;
- rejected, different: those of the other pool, such as cars for a task of birds.

The intervals are over draws of classes and images from one pool, so they say nothing about other
kinds of images. Lite0 was trained on ImageNet, which has birds and cars of its own: on photographs
of things that ImageNet lacks it may be worse.

Run: ``python -m experiments.adapt.rejection --photos DIR``. One JSON file per backbone is written
to ``experiments/results/rejection``, and the table is printed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neural_similarity.adapt import (
    TrainingImages,
    fit_rejection,
    fold_numbers,
    load_backbone,
    near_duplicates,
)

from ..code_version import commit
from ..intervals import over_seeds
from ..markdown import table
from ..records import RESULTS, Record, read_record, write_record
from .pools import Draw, draws, embed_pool, photographs

__all__ = ["measure_draw", "measure_pools", "table_of"]

WAYS, SHOTS, FOLDS = 5, (5, 10, 20), 5
KINDS = ("wrongly rejected", "rejected, similar", "rejected, different")


def measure_draw(data: TrainingImages, others: TrainingImages, draw: Draw) -> dict[str, float]:
    """The share of images of each kind that is rejected, from 0 to 1."""
    train, test = draw.rows[: draw.n_train], draw.rows[draw.n_train :]
    labels, features = draw.labels[: draw.n_train], data.features[train]
    n_way = int(labels.max()) + 1
    groups = near_duplicates(features, labels, data.mirrored[train])
    parts = fold_numbers(labels, FOLDS, 0, groups)
    rejection = fit_rejection(features, labels, n_way, parts, groups=groups)
    assert rejection is not None
    similar = ~torch.isin(data.labels, data.labels[draw.rows])

    def rejected(new: Tensor) -> float:
        return 1 - rejection.accepts(new).float().mean().item()

    shares = (data.features[test], data.features[similar], others.features)
    return dict(zip(KINDS, map(rejected, shares), strict=True))


def measure_pools(
    pools: Mapping[str, TrainingImages], n_way: int, shots: tuple[int, ...], count: int
) -> list[Record]:
    """A row for each pool and number of images: the shares of every draw, mean and interval."""
    rows: list[Record] = []
    for name, data in pools.items():
        (others,) = (other for key, other in pools.items() if key != name)
        for n_shot in shots:
            results = [
                measure_draw(data, others, d) for d in draws(data, n_way, n_shot, range(count))
            ]
            row: Record = {"pool": name, "n_way": n_way, "n_shot": n_shot, "draws": count}
            for kind in KINDS:
                values = [result[kind] for result in results]
                estimate = over_seeds(values)
                row[kind] = {
                    "mean": estimate.mean, "low": estimate.low, "high": estimate.high,
                    "of_draws": values,
                }  # fmt: skip
            rows.append(row)
    return rows


def table_of(rows: list[Record]) -> str:
    """In percent, with 95 % intervals over draws."""
    head = ["classes", "images per class", *KINDS]
    return table(head, [[row["pool"], str(row["n_shot"]), *map(_cell, _of(row))] for row in rows])


def _of(row: Record) -> list[dict[str, Any]]:
    return [row[kind] for kind in KINDS]


def _cell(share: Mapping[str, Any]) -> str:
    mean = 100 * share["mean"]
    return (
        f"{mean:.1f}" if share["high"] is None else f"{mean:.1f} ± {100 * share['high'] - mean:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.adapt.rejection", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", type=Path, required=True, help="has birds/CLASS and cars/CLASS")
    parser.add_argument("--backbone", default="efficientnet_lite0", help="as in nsl adapt")
    parser.add_argument("--draws", type=int, default=20, help="tasks per number (default 20)")
    parser.add_argument("--out", type=Path, default=RESULTS / "rejection", help="results folder")
    arguments = parser.parse_args()
    backbone = load_backbone(arguments.backbone)
    side = backbone.preprocessing.image_size
    file = arguments.out / f"{backbone.name}-{side}.json"
    record = read_record(file)
    if record is None:
        pools = {
            name: embed_pool(backbone, photographs(arguments.photos / name, name, slice(None)))
            for name in ("birds", "cars")
        }
        record = {
            "backbone": backbone.name, "image_size": side, "folds": FOLDS, "commit": commit(),
            "torch": torch.__version__, "rows": measure_pools(pools, WAYS, SHOTS, arguments.draws),
        }  # fmt: skip
        write_record(file, json.loads(json.dumps(record)))
        print(f"wrote {file}")
    print(table_of(record["rows"]))


if __name__ == "__main__":
    main()

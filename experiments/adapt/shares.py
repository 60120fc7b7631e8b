"""How much ridge regression should count in the ensemble of ``nsl adapt``.

On classes that serve for choices: ten birds, and the validation classes of mini-ImageNet. Tasks of
10 ways; the accuracy of logistic regression, and what each share of ridge regression adds to it.

Run: ``python -m experiments.adapt.shares --photos DIR --mini DIR`` prints a table, and writes one
JSON file per pool to ``experiments/results/shares``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch

from neural_similarity.adapt import TrainingImages, load_backbone, make_adapter

from ..code_version import commit
from ..intervals import over_episodes
from ..markdown import table
from ..records import RESULTS, write_record
from ..report.cells import number, signed
from .pools import (
    TESTED,
    Pool,
    add_pool_options,
    draws,
    embed_pool,
    mini_imagenet,
    photographs,
)

WAYS, SHOTS = 10, (5, 10, 20, 35)
SHARES = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)


def measure(data: TrainingImages, n_way: int, n_shot: int, tasks: range) -> dict[str, list[float]]:
    """The accuracy on every task, in percent, by the share of ridge regression."""
    accuracies = []
    for draw in draws(data, n_way, n_shot, tasks):
        part, rows = data.subset(draw.rows, draw.labels), torch.arange(len(draw.rows))
        train, test = rows[: draw.n_train], rows[draw.n_train :]
        scores = []
        for name in ("linear", "ridge"):
            method = make_adapter(name, part)
            learned = method.fit(train)
            scores.append(method.scores(learned, test) / learned.weight.norm())
        logistic, ridge = scores
        mixed = torch.stack([logistic.lerp(ridge, share) for share in SHARES])
        accuracies.append(100 * (mixed.argmax(2) == part.labels[test]).double().mean(1))
    by_share = torch.stack(accuracies, 1).tolist()
    return {str(share): values for share, values in zip(SHARES, by_share, strict=True)}


def cells(accuracies: dict[str, list[float]]) -> list[str]:
    """The cells of a row: logistic regression, and the differences from it, in points."""
    logistic, *others = (torch.tensor(values) for values in accuracies.values())
    gains = [signed(over_episodes((other - logistic).tolist()), brief=True) for other in others]
    return [number(over_episodes(logistic.tolist()), brief=True), *gains]


def pools(arguments: argparse.Namespace) -> Iterator[Pool]:
    if arguments.photos is not None:
        yield photographs(arguments.photos / "birds", "birds, for choices", slice(0, 10))
    if arguments.mini is not None:
        yield mini_imagenet(arguments.mini, "val")


def main() -> None:
    arguments = parse()
    backbone = load_backbone(arguments.backbone, image_size=arguments.image_size)
    size = backbone.preprocessing.image_size
    lines = []
    for pool in pools(arguments):
        data = embed_pool(backbone, pool)
        about: dict[str, Any] = {
            "pool": pool.name, "classes": pool.classes, "backbone": backbone.name,
            "image_size": size, "n_way": WAYS, "commit": commit(), "accuracies": {},
        }  # fmt: skip
        for n_shot in SHOTS:
            if n_shot + TESTED <= min(map(len, pool.images)):
                accuracies = measure(data, WAYS, n_shot, range(arguments.draws))
                about["accuracies"][str(n_shot)] = accuracies
                lines.append([pool.name, str(n_shot), *cells(accuracies)])
                print(*lines[-1], sep="  ", flush=True)
        name = f"{pool.name.replace(', ', '-').replace(' ', '-')}-{backbone.name}-{size}.json"
        write_record(RESULTS / "shares" / name, about)
    shares = (f"ridge {share:.3g}" for share in SHARES[1:])
    titles = ["pool", "images per class", "logistic", *shares]
    print("\n" + table(titles, lines))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.adapt.shares", description=(__doc__ or "").partition("\n")[0]
    )
    add_pool_options(parser)
    arguments = parser.parse_args()
    if arguments.photos is None and arguments.mini is None:
        parser.error("expected --photos DIR, --mini DIR or both, got neither")
    return arguments


if __name__ == "__main__":
    main()

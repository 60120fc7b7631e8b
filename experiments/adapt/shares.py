"""How much ridge regression should count in the ensemble of ``nsl adapt``.

On classes that serve for choices: ten birds, and the validation classes of mini-ImageNet. Tasks of
10 ways; the accuracy of logistic regression, and what each share of ridge regression adds to it.

Run: ``python -m experiments.adapt.shares --photos DIR --mini DIR`` prints a table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F

from neural_similarity.adapt import TrainingImages, linear_heads, load_backbone

from ..intervals import over_episodes
from ..markdown import table
from ..report.cells import number, signed
from .pools import Pool, draws, embed_pool, mini_imagenet, photographs

WAYS, SHOTS, TESTED = 10, (5, 10, 20, 35), 20
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)


def measure(data: TrainingImages, n_shot: int, tasks: range) -> list[str]:
    """The cells of a row: logistic regression, and the differences to it, in points."""
    accuracies = []
    for draw in draws(data, WAYS, n_shot, tasks):
        part, n = data.subset(draw.rows, draw.labels), draw.n_train
        features, mirrored = F.normalize(part.features), F.normalize(part.mirrored)
        known = features[:n], part.labels[:n], WAYS
        pair = linear_heads.logistic(*known, mirrored[:n]), linear_heads.ridge(*known)
        scores = [linear_heads.average(*pair, share)(features[n:]) for share in (0.0, *SHARES)]
        right = torch.stack(scores).argmax(2) == part.labels[n:]
        accuracies.append(100 * right.double().mean(1))
    logistic, *others = torch.stack(accuracies, 1)
    cells = [number(over_episodes(logistic.tolist()), brief=True)]
    return cells + [
        signed(over_episodes((other - logistic).tolist()), brief=True) for other in others
    ]


def pools(arguments: argparse.Namespace) -> Iterator[Pool]:
    if arguments.photos is not None:
        yield photographs(arguments.photos / "birds", "birds, for choices", slice(0, 10))
    if arguments.mini is not None:
        yield mini_imagenet(arguments.mini, "val")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.adapt.shares", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--photos", type=Path, help="folder with birds/CLASS")
    parser.add_argument("--mini", type=Path, help="folder of mini-ImageNet, with images and tables")
    parser.add_argument("--backbone", default="efficientnet_lite0", help="as in nsl adapt")
    parser.add_argument("--image-size", type=int, help="side of the images it reads")
    parser.add_argument("--draws", type=int, default=100, help="tasks per number (default 100)")
    arguments = parser.parse_args()
    if arguments.photos is None and arguments.mini is None:
        parser.error("expected --photos DIR, --mini DIR or both, got neither")
    backbone = load_backbone(arguments.backbone, image_size=arguments.image_size)
    lines = []
    for pool in pools(arguments):
        data = embed_pool(backbone, pool)
        for n_shot in SHOTS:
            if n_shot + TESTED <= min(map(len, pool.images)):
                cells = measure(data, n_shot, range(arguments.draws))
                lines.append([pool.name, str(n_shot), *cells])
                print(*lines[-1], sep="  ", flush=True)
    titles = ["pool", "images a class", "logistic", *(f"ridge {share:.3g}" for share in SHARES)]
    print("\n" + table(titles, lines))


if __name__ == "__main__":
    main()

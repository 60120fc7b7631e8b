"""Can one trust the accuracy that ``nsl adapt`` reports? Simulated folders of images.

A folder is 10 classes of 5, 10 or 20 points: Gaussian clusters in 64 or 160 dimensions, scaled to
unit length like the features of a network, that overlap more or less. It is cross-validated with
one, three or six methods to choose from. The chosen classifier, trained on all points, is tested on
2,000 new points of the classes: that is the accuracy that should be reported. Of 200 folders:

- bias: the reported minus the true accuracy, in points. Beside it, that of other numbers that one
  could report: the highest of the methods' accuracies; the accuracy if each fold is classified by
  the method that was best on the other folds; the highest minus the correction of Tibshirani and
  Tibshirani (2009), https://doi.org/10.1214/08-AOAS224.
- in the interval: how often the true accuracy is in the reported 95 % interval.
- calibration error on new points, before and after the temperature.
- accepted: the share of new points of the classes that the rejection at 95 % accepts.

Run: ``python -m experiments.trust`` prints a table. ``--folders 20`` is faster.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.adapt import cross_validate, fit_rejection, fold_numbers, measure_calibration

from .markdown import table

WAYS, FOLDS, NEW = 10, 5, 200
SEEDS = 1000  # the first seed; the constants of the estimate were chosen on lower ones
SHOTS = (5, 10, 20)
CHOICES = {  # the first is preferred; a weak one there, so that others are chosen often
    "one": ("ridge 0.3",),
    "three": ("nearest", "means", "ridge 0.3"),
    "six": ("nearest", "ridge 0.03", "ridge 0.1", "ridge 0.3", "ridge 1", "means"),
}


@dataclass(frozen=True)
class Head:
    """A method on points that are given; ``fit`` returns what it learned."""

    name: str
    points: Tensor
    labels: Tensor

    def fit(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        points, labels = self.points[rows], self.labels[rows]
        if self.name == "nearest":
            return points, labels
        if self.name == "means":
            means = torch.stack([points[labels == way].mean(0) for way in range(WAYS)])
            return 20 * means, -10 * means.square().sum(1)
        centre = points.mean(0)
        products = (points - centre) @ (points - centre).mT
        strength = float(self.name.split()[1]) * products.diagonal().mean()
        targets = F.one_hot(labels, WAYS).to(points) - 1 / WAYS
        dual = torch.linalg.solve(products + strength * torch.eye(len(points)), targets)
        weight = 10 * dual.mT @ (points - centre)
        return weight, -weight @ centre

    def scores(self, learned: tuple[Tensor, Tensor], rows: Tensor) -> Tensor:
        return self.of(learned, self.points[rows])

    def of(self, learned: tuple[Tensor, Tensor], points: Tensor) -> Tensor:
        """The scores of any points."""
        first, second = learned
        if self.name != "nearest":
            return points @ first.mT + second
        products = points @ first.mT
        return 10 * torch.stack([products[:, second == way].amax(1) for way in range(WAYS)], 1)


@dataclass(frozen=True)
class Folder:
    """Points ``(n, D)`` with labels, and new points of the same classes."""

    points: Tensor
    labels: Tensor
    new: Tensor
    new_labels: Tensor


def simulate(shots: int, seed: int) -> Folder:
    """A folder; the seed also decides its dimension and how much its classes overlap."""
    generator = torch.Generator().manual_seed(seed)
    dimension = (64, 160)[seed % 2]
    distance = (0.3, 0.45, 0.7)[seed // 2 % 3] * (64 / dimension) ** 0.25
    spectrum = F.normalize(torch.arange(1.0, dimension + 1) ** -0.5, dim=0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    means = spectrum * (normal(1, 1, dimension) + distance * normal(WAYS, 1, dimension))
    widths = torch.exp(0.2 * normal(WAYS, 1, 1))
    points = means + widths * spectrum * normal(WAYS, shots + NEW, dimension)
    points = F.normalize(points, dim=2)
    return Folder(
        points[:, :shots].flatten(0, 1),
        torch.arange(WAYS).repeat_interleave(shots),
        points[:, shots:].flatten(0, 1),
        torch.arange(WAYS).repeat_interleave(NEW),
    )


def measure(shots: int, names: tuple[str, ...], seed: int) -> dict[str, float]:
    """What is reported for a folder, and what is true."""
    folder = simulate(shots, seed)
    heads = {name: Head(name, folder.points, folder.labels) for name in names}
    result = cross_validate(heads, folder.labels, WAYS, FOLDS, seed)
    assert result.accuracy is not None
    assert result.interval is not None
    head = heads[result.method]
    scores = head.of(head.fit(torch.arange(len(folder.labels))), folder.new)
    true = (scores.argmax(1) == folder.new_labels).float().mean().item()
    parts = fold_numbers(folder.labels, FOLDS, seed)
    rejection = fit_rejection(folder.points, folder.labels, WAYS, parts)
    assert rejection is not None
    before, after = (
        measure_calibration((scores / divisor).softmax(1), folder.new_labels).error
        for divisor in (1.0, result.temperature)
    )
    numbers = {"reported": result.accuracy} | other_estimates(heads, folder.labels, parts)
    low, high = result.interval
    return {
        "true": true,
        **{name: value - true for name, value in numbers.items()},
        "in the interval": float(low <= true <= high),
        "width": high - low,
        "error before": before,
        "error after": after,
        "accepted": rejection.accepts(folder.new).float().mean().item(),
    }


def other_estimates(heads: Mapping[str, Head], labels: Tensor, parts: Tensor) -> dict[str, float]:
    """The accuracies that one could report instead."""
    correct = torch.zeros(len(heads), len(labels))
    for number in parts.unique():
        train, test = (parts != number).nonzero()[:, 0], (parts == number).nonzero()[:, 0]
        for place, head in enumerate(heads.values()):
            scores = head.scores(head.fit(train), test)
            correct[place, test] = (scores.argmax(1) == labels[test]).float()
    best = int(correct.sum(1).argmax())
    by_others, excess = torch.zeros(len(labels)), []
    for number in parts.unique():
        here = parts == number
        by_others[here] = correct[correct[:, ~here].sum(1).argmax(), here]
        shares = correct[:, here].mean(1)
        excess.append((shares.max() - shares[best]).item())
    highest = correct[best].mean().item()
    return {
        "highest": highest,
        "other folds": by_others.mean().item(),
        "tibshirani": highest - fmean(excess),
    }


def summary(rows: list[dict[str, float]]) -> list[str]:
    """The cells of a row of the table."""
    mean = {name: fmean(row[name] for row in rows) for name in rows[0]}
    error = stdev(row["reported"] for row in rows) / sqrt(len(rows))
    biases = [f"{100 * mean[name]:+.1f}" for name in ("highest", "other folds", "tibshirani")]
    return [
        f"{mean['true']:.1%}",
        f"{100 * mean['reported']:+.1f} ± {100 * error:.1f}",
        *biases,
        f"{mean['in the interval']:.1%}",
        f"{100 * mean['width']:.0f}",
        f"{100 * mean['error before']:.0f} → {100 * mean['error after']:.0f}",
        f"{mean['accepted']:.1%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folders", type=int, default=200, help="of each size and choice")
    folders = parser.parse_args().folders
    titles = ["methods", "images per class", "true accuracy", "bias (± standard error)", "highest",
              "other folds", "Tibshirani", "in the interval", "width", "calibration error",
              "accepted"]  # fmt: skip
    lines = []
    for choice, names in CHOICES.items():
        everything = []
        for shots in SHOTS:
            rows = [measure(shots, names, seed) for seed in range(SEEDS, SEEDS + folders)]
            lines.append([choice, str(shots), *summary(rows)])
            print(*lines[-1], sep="  ", flush=True)
            everything += rows
        lines.append([choice, "all", *summary(everything)])
    print("\n" + table(titles, lines))


if __name__ == "__main__":
    main()

"""Does self-recurrence save parameters and strengthen a dynamic layer, as Section 5.2 suggests?

One layer with dynamic similarity is applied several times to its own output, x ← x + relu(f(x)),
with the same parameters each time. Scikit-learn's digits, 20 training images per class. Compared:

    recurrent, dynamic      one DynamicConv2d, applied `depth` times
    recurrent, plain        one nn.Conv2d, applied `depth` times
    stack, dynamic          `depth` different layers: parameters grow with depth
    stack, as many parameters
                            the same, made narrower until it has no more parameters than the
                            recurrent network

There is no BatchNorm: its statistics would differ from one application to the next.

Run: ``python -m experiments.theory.self_recurrence``
"""

from __future__ import annotations

import sys
from typing import TypedDict

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import neural_similarity as ns

from .. import markdown
from . import experiment
from .experiment import Numbers

OPTIONS = {"seeds": "starts and draws of the training images", "steps": "training steps"}
DEPTHS, WIDTH, HIDDEN, A_CLASS = (1, 2, 4), 12, 12, 20
METHODS = (
    "recurrent, dynamic", "recurrent, plain", "stack, dynamic", "stack, as many parameters",
)  # fmt: skip


class Run(TypedDict):
    """The results of a network, seed by seed."""

    parameters: int
    accuracy: list[float]
    loss: list[float]


class Recurrent(nn.Module):
    """A stem, ``depth`` residual steps through ``layers`` in turn, a head."""

    def __init__(self, width: int, depth: int, layers: int, dynamic: bool = True) -> None:
        super().__init__()
        self.depth = depth
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.ModuleList(step(width, dynamic) for _ in range(layers))
        self.head = nn.Linear(width * 16, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(images).relu(), 2)
        for i in range(self.depth):
            x = x + self.layers[i % len(self.layers)](x).relu()
        scores: Tensor = self.head(x.flatten(1))
        return scores


def step(width: int, dynamic: bool) -> nn.Module:
    if not dynamic:
        return nn.Conv2d(width, width, 3, padding=1)
    predictor = ns.SpherePredictor(hidden=HIDDEN, batch_norm=False)
    return ns.nn.DynamicConv2d(width, width, 3, padding=1, predictor=predictor)


def build(method: str, depth: int) -> Recurrent:
    if method == METHODS[0]:
        return Recurrent(WIDTH, depth, 1)
    if method == METHODS[1]:
        return Recurrent(WIDTH, depth, 1, dynamic=False)
    if method == METHODS[2]:
        return Recurrent(WIDTH, depth, depth)
    with torch.random.fork_rng():  # trying widths must not change the random start of the last
        limit = count(Recurrent(WIDTH, depth, 1))
        fits = (w for w in range(WIDTH, 0, -1) if count(Recurrent(w, depth, depth)) <= limit)
        width = next(fits)
    return Recurrent(width, depth, depth)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def measure(seeds: int = 5, steps: int = 50) -> Numbers:
    runs: dict[str, dict[str, Run]] = {}
    for method in METHODS:
        runs[method] = {}
        for depth in DEPTHS:
            results = [train(method, depth, seed, steps) for seed in range(seeds)]
            runs[method][str(depth)] = {
                "parameters": count(build(method, depth)),
                "accuracy": [accuracy for accuracy, _ in results],
                "loss": [loss for _, loss in results],
            }
    return {"seeds": seeds, "steps": steps, "runs": runs}


def train(method: str, depth: int, seed: int, steps: int) -> tuple[float, float]:
    """Accuracy on all other images, and the loss on the training images, at the end."""
    train_x, test_x, train_y, test_y = digits(seed)
    torch.manual_seed(seed)
    model = build(method, depth)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        batch = torch.randint(len(train_x), (64,))
        loss = F.cross_entropy(model(train_x[batch]), train_y[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        right = (model(test_x).argmax(1) == test_y).double().mean().item()
        return right, F.cross_entropy(model(train_x), train_y).item()


def digits(seed: int) -> list[Tensor]:
    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    labels = torch.from_numpy(data.target)
    parts: list[Tensor] = train_test_split(
        images, labels, train_size=10 * A_CLASS, random_state=seed, stratify=data.target
    )
    return parts


def table(numbers: Numbers) -> str:
    rows = []
    for method, depths in numbers["runs"].items():
        for depth, run in depths.items():
            mean, half = experiment.interval([100 * a for a in run["accuracy"]])
            loss = experiment.interval(run["loss"])[0]
            rows.append(
                [method, depth, str(run["parameters"]), f"{mean:.1f} ± {half:.1f} %", f"{loss:.3f}"]
            )
    return markdown.table(["network", "depth", "parameters", "accuracy", "training loss"], rows)


def conclude(numbers: Numbers) -> str:
    runs = numbers["runs"]
    dynamic, plain, stack, narrow = (runs[method] for method in METHODS)
    last = str(DEPTHS[-1])
    sizes = {run["parameters"] for run in dynamic.values()}
    return (
        f"The recurrent network has {'/'.join(map(str, sorted(sizes)))} parameters at every depth. "
        f"Its accuracy when applied {last} times, compared, in percentage points, with being "
        f"applied once: {_versus(dynamic[last], dynamic['1'])}; with the recurrence of a plain "
        f"convolution: {_versus(dynamic[last], plain[last])}; with the stack that has "
        f"{stack[last]['parameters'] / dynamic[last]['parameters']:.1f} times its parameters: "
        f"{_versus(dynamic[last], stack[last])}; with the narrower stack of "
        f"{narrow[last]['parameters']} parameters: {_versus(dynamic[last], narrow[last])}. (±: "
        f"95 % interval of the paired difference, {numbers['seeds']} seeds.)"
    )


def _versus(ours: Run, theirs: Run) -> str:
    pairs = zip(ours["accuracy"], theirs["accuracy"], strict=True)
    mean, half = experiment.interval([100 * (a - b) for a, b in pairs])
    if not abs(mean) > half:
        return f"not clearly different ({mean:+.1f} ± {half:.1f})"
    return f"{'higher' if mean > 0 else 'lower'} by {abs(mean):.1f} ± {half:.1f}"


def draw(numbers: Numbers) -> Figure:
    figure = Figure(figsize=(9.5, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for shift, (method, marker) in enumerate(zip(METHODS, "os^v", strict=True)):
        runs = numbers["runs"][method]
        middle, half = zip(
            *(experiment.interval([100 * a for a in run["accuracy"]]) for run in runs.values()),
            strict=True,
        )
        places = [int(depth) * 1.03 ** (shift - 1.5) for depth in runs]  # side by side
        left.errorbar(places, middle, half, marker=marker, capsize=3, label=method)
        sizes = [run["parameters"] for run in runs.values()]
        right.plot(places, sizes, marker=marker)
    for panel in (left, right):
        panel.set(xscale="log", xlabel="depth: times a layer is applied")
        panel.set(xticks=DEPTHS, xticklabels=DEPTHS)
        panel.minorticks_off()
    left.set(ylabel="test accuracy (%)", title="Accuracy, mean and 95 % interval")
    right.set(ylabel="parameters", ylim=(0, None), title="Parameters")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


if __name__ == "__main__":
    experiment.run(sys.modules[__name__])

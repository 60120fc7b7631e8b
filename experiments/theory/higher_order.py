"""Is one layer with dynamic similarity a higher-order function of its input (Section 6)?

y = Wᵀ M(x) x is a polynomial of degree 2 in x if M(x) is linear in x, and L such layers make
degree 2^L. The degree is measured: along a line, the k-th differences of equally spaced values of
a polynomial vanish exactly when k is above its degree. These layers are fitted to a random
quadratic of six variables:

    linear                          nn.Linear
    dynamic, M = w' xᵀ + I          the paper's example: its quadratic part is a multiple of ‖x‖²
    dynamic, M = diag(A x) + I      a linear predictor of a diagonal: any quadratic, for one output
    dynamic, M = T x + I            a linear predictor of all n² entries: any quadratic
    dynamic, M = SphereNet(x) + I   the paper's predictor in practice

The growth of the output along rays distinguishes a quadratic (c²) from a function that is curved
but grows like a linear one (c): the SphereNet sees only the direction of x.

Run: ``python -m experiments.theory.higher_order``
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from math import comb

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import neural_similarity as ns

from .. import markdown
from . import experiment
from .experiment import Numbers

OPTIONS = {"seeds": "random quadratics and starts"}
N, SAMPLES, HIGHEST = 6, 512, 10
VANISHES = 1e-10
FUNCTIONS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(N, 1),
    "dynamic, M = w' xᵀ + I": lambda: dynamic(PaperPredictor(N), "unconstrained"),
    "dynamic, M = diag(A x) + I": lambda: dynamic(LinearPredictor(N, N), "diagonal"),
    "dynamic, M = T x + I": lambda: dynamic(LinearPredictor(N, N * N), "unconstrained"),
    "dynamic, M = SphereNet(x) + I": lambda: dynamic(
        ns.SpherePredictor(hidden=16, batch_norm=False, start="authors"), "diagonal"
    ),
}


class LinearPredictor(nn.Module):
    """The entries of M as a linear function of the input."""

    def __init__(self, inputs: int, entries: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, entries, bias=False)

    def forward(self, input: Tensor, window: object) -> Tensor:
        entries: Tensor = self.linear(input)
        return entries


class PaperPredictor(nn.Module):
    """M = w' xᵀ, with a vector w'."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(inputs) / inputs)

    def forward(self, input: Tensor, window: object) -> Tensor:
        return torch.einsum("i,bj->bij", self.vector, input).flatten(1)


def dynamic(
    predictor: nn.Module | ns.SpherePredictor, structure: str, outputs: int = 1
) -> ns.nn.DynamicLinear:
    return ns.nn.DynamicLinear(N, outputs, structure=structure, predictor=predictor)


def stack(layers: int) -> nn.Sequential:
    """Dynamic layers with linear predictors, one after the other, at their random start."""
    wide = [dynamic(LinearPredictor(N, N), "diagonal", N) for _ in range(layers - 1)]
    return nn.Sequential(*wide, dynamic(LinearPredictor(N, N), "diagonal"))


def measure(seeds: int = 5) -> Numbers:
    fits = {name: [fit(name, seed) for seed in range(seeds)] for name in FUNCTIONS}
    depths = {}
    for layers in (1, 2, 3):
        torch.manual_seed(layers)
        depths[str(layers)] = differences(stack(layers).double())
    return {"seeds": seeds, "fits": fits, "depths": depths}


def fit(name: str, seed: int, iterations: int = 300) -> Numbers:
    """Fit one function to one quadratic: quality of the fit, degree and growth."""
    torch.manual_seed(seed)
    Q, b, c = (torch.randn(shape, dtype=torch.float64) for shape in ((N, N), (N,), ()))

    def quadratic(x: Tensor) -> Tensor:
        return ((x @ Q * x).sum(1) + x @ b + c)[:, None]

    x, inside = (2 * torch.rand(SAMPLES, N, dtype=torch.float64) - 1 for _ in range(2))
    model = FUNCTIONS[name]().double()
    optimiser = torch.optim.LBFGS(
        model.parameters(), max_iter=iterations, line_search_fn="strong_wolfe",
        tolerance_grad=1e-12, tolerance_change=1e-14,
    )  # fmt: skip

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss: Tensor = (model(x) - quadratic(x)).square().mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    with torch.no_grad():
        return {
            "inside": explained(model(inside), quadratic(inside)),
            "outside": explained(model(3 * inside), quadratic(3 * inside)),
            "differences": differences(model),
            "growth": growth(model),
            "parameters": sum(p.numel() for p in model.parameters()),
        }


def explained(prediction: Tensor, true: Tensor) -> float:
    """R²: the share of the variance that is explained."""
    return (1 - (prediction - true).square().mean() / true.var(correction=0)).item()


@torch.no_grad()
def differences(function: Callable[[Tensor], Tensor], highest: int = HIGHEST) -> list[float]:
    """Size of the k-th differences along random lines, k = 1 ... highest.

    Relative to the sum of the absolute terms: between 0 and 1; rounding errors are near 1e-16.
    """
    generator = torch.Generator().manual_seed(0)
    points, ways = torch.randn(2, 50, 1, N, generator=generator, dtype=torch.float64)
    sizes = []
    for k in range(1, highest + 1):
        along = torch.linspace(-1, 1, k + 1, dtype=torch.float64)[None, :, None]
        values = function((points + along * ways).reshape(-1, N)).reshape(-1, k + 1)
        weights = torch.tensor([comb(k, j) for j in range(k + 1)], dtype=torch.float64)
        signs = torch.tensor([(-1.0) ** j for j in range(k + 1)], dtype=torch.float64)
        total = (values * weights * signs).sum(1).abs() / (values.abs() * weights).sum(1)
        sizes.append(total.max().item())
    return sizes


def degree(sizes: list[float]) -> int | None:
    """The order of the last difference that does not vanish; None if none vanishes."""
    there = [k for k, size in enumerate(sizes, 1) if size > VANISHES]
    last = max(there, default=0)
    return last if last < len(sizes) else None


@torch.no_grad()
def growth(function: Callable[[Tensor], Tensor], far: float = 1e4) -> float:
    """The power p of growth ~ cᵖ along rays from the origin (the median of 50)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(50, N, generator=generator, dtype=torch.float64)
    near, further = (function(c * x) - function(0 * x) for c in (far, 2 * far))
    return torch.log2((further / near).abs()).median().item()


def table(numbers: Numbers) -> str:
    rows = []
    for name, fits in numbers["fits"].items():
        degrees = {degree(fit["differences"]) for fit in fits}
        text = "/".join(f"over {HIGHEST - 1}" if d is None else str(d) for d in degrees)
        cells = [_middle(fits, "inside"), _middle(fits, "outside"), _middle(fits, "growth")]
        rows.append([name, str(fits[0]["parameters"]), text, *(f"{cell:.3f}" for cell in cells)])
    return markdown.table(
        ["one layer", "parameters", "degree", "R² inside", "R² three times as far", "growth power"],
        rows,
    )


def conclude(numbers: Numbers) -> str:
    fits = numbers["fits"]
    linear, paper, diagonal, full, sphere = fits
    degrees = {name: {degree(fit["differences"]) for fit in runs} for name, runs in fits.items()}
    depth = ", ".join(f"{layers} → {degree(sizes)}" for layers, sizes in numbers["depths"].items())
    bends = degrees[sphere] == {None}
    return (
        f"A linear layer explains {_middle(fits[linear], 'inside'):.0%} of the quadratic. A layer "
        f"with a linear predictor has measured degree {_names(degrees[full])} and explains, on the "
        f"worst seed, {_worst(fits[full], 'inside'):.4%} with n² predicted entries and "
        f"{_worst(fits[diagonal], 'inside'):.4%} with a predicted diagonal. The "
        f"paper's example M = w' xᵀ has degree "
        f"{_names(degrees[paper])} too, but the one quadratic it adds is a multiple of ‖x‖²: "
        f"it explains {_middle(fits[paper], 'inside'):.0%}. The SphereNet predictor makes a "
        f"function "
        f"{'of no finite degree that we can see' if bends else 'of finite degree'}, which explains "
        f"{_middle(fits[sphere], 'inside'):.1%} inside, but its output grows like c to the power "
        f"{_middle(fits[sphere], 'growth'):.2f} along rays (quadratic: "
        f"{_middle(fits[full], 'growth'):.2f}), so three times as far out its R² is "
        f"{_middle(fits[sphere], 'outside'):.2f}. Layers stacked, and the degree measured: {depth}."
    )


def _names(degrees: set[int | None]) -> str:
    return "/".join("none" if d is None else str(d) for d in degrees)


def _middle(fits: list[Numbers], name: str) -> float:
    return torch.tensor([fit[name] for fit in fits]).median().item()


def _worst(fits: list[Numbers], name: str) -> float:
    return float(min(fit[name] for fit in fits))


def draw(numbers: Numbers) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    orders = range(1, HIGHEST + 1)
    for (name, fits), marker in zip(numbers["fits"].items(), "os^vD", strict=True):
        sizes = torch.tensor([fit["differences"] for fit in fits]).amax(0).clamp_min(1e-18)
        left.semilogy(orders, sizes, marker=marker, label=name, alpha=0.8)
    for (layers, sizes), marker in zip(numbers["depths"].items(), "os^", strict=True):
        label = f"{layers} layer{'s' * (layers != '1')}: degree {degree(sizes)}"
        right.semilogy(orders, sizes, marker=marker, label=label)
    for panel in (left, right):
        panel.axhline(VANISHES, color="grey", linestyle=":")
        panel.set(xlabel="order k of the differences", xticks=orders, ylim=(1e-18, 1e5))
        panel.legend(fontsize=8, loc="upper right", ncols=2 if panel is left else 1)
    left.set(ylabel="relative size of k-th differences", title="Fitted to a quadratic, one layer")
    right.set(title="Dynamic layers with linear predictors, stacked")
    return figure


if __name__ == "__main__":
    experiment.run(sys.modules[__name__])

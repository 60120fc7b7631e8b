"""Which similarity turns a layer into a residual (forward Euler) step, and does it then solve ODEs?

Section 5.2: if Wᵀ W̃ picks the centre of the patch, then Wᵀ (W̃ + M) X = X_centre + Wᵀ M X, which
is x + Δt g(x). The paper writes Wᵀ W̃ = Diag(0, ..., 1, ..., 0). The product has one row per kernel,
so for one kernel it is the row vector e_centreᵀ, and for C kernels on C channels the C × CK matrix
E with a one at (c, centre of channel c). For given W (CK × C), W̃ exists

    scope "full"      iff W has rank C: random kernels always do. W̃ = (Wᵀ)⁺ E.
    scope "kernel"    one block per kernel o: for random kernels iff C ≤ K
    scope "channel"   one block per channel c: for random kernels iff C ≤ K
    scope "layer"     the paper's one block M_s: C² equations for K unknowns per column: iff C² ≤ K

The last three are what counting equations predicts; the residual of the least squares solution is
measured here for each. Then, with the full scope, g is chosen to be a linear ODE on two coupled
channels (diffusion and rotation), the layer is iterated, and the end is compared with the exact
solution exp(tA) u(0), where A is written without this library.

Run: ``python -m experiments.theory.ode``
"""

from __future__ import annotations

import sys
from itertools import pairwise

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

import neural_similarity as ns
from neural_similarity.ops import Scope

from .. import markdown
from . import experiment
from .experiment import Numbers

OPTIONS: dict[str, str] = {}
SCOPES: tuple[Scope, ...] = ("full", "kernel", "channel", "layer")
SIDE, K, CENTRE = 3, 9, 4
SIZE, CHANNELS, TIME, DIFFUSION, ROTATION = 10, 2, 1.0, 0.5, 1.5
EXISTS = 1e-10


def measure(halvings: int = 6, most_channels: int = 12) -> Numbers:
    return {
        "residuals": {
            scope: [residual(scope, C) for C in range(1, most_channels + 1)] for scope in SCOPES
        },
        "step_difference": step_difference(),
        **converge(halvings),
    }


def residual(scope: Scope, C: int) -> float:
    """How far the best W̃ of this scope is from picking the centre: 0 if one exists."""
    weight = kernels(C)
    best = similarity_for(weight, centre(C), scope)
    picked = ns.ops.effective_weight(weight, best, scope=scope)
    return experiment.relative_error(picked, centre(C))


def similarity_for(weight: Tensor, target: Tensor, scope: Scope = "full") -> Tensor:
    """M with Mᵀ W nearest to the kernels ``target``, both ``(O, C, 3, 3)``, by pseudo-inverse."""
    M: Tensor = torch.linalg.pinv(_rows(weight, scope)) @ _rows(target, scope)
    return M


def _rows(kernels: Tensor, scope: Scope) -> Tensor:
    """Kernels as rows of taps that share an M: one matrix, or one for each M."""
    taps = kernels.flatten(2)  # (O, C, K)
    return {
        "full": taps.flatten(1),
        "kernel": taps,
        "channel": taps.transpose(0, 1),
        "layer": taps.flatten(0, 1),
    }[scope]


def kernels(C: int, seed: int = 0) -> Tensor:
    """C random kernels on C channels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(C, C, SIDE, SIDE, generator=generator, dtype=torch.float64)


def centre(C: int) -> Tensor:
    """E as kernels: kernel c picks the centre of channel c, and the layer returns its input."""
    taps = torch.zeros(C, C, K, dtype=torch.float64)
    taps[range(C), range(C), CENTRE] = 1
    return taps.reshape(C, C, SIDE, SIDE)


def step_difference(dt: float = 0.1, C: int = 5) -> float:
    """Largest difference of the similarity layer's output to x + Δt g(x), for random W, M and x."""
    generator = torch.Generator().manual_seed(1)
    weight = kernels(C)
    M = torch.randn(C * K, C * K, generator=generator, dtype=torch.float64)
    x = torch.randn(2, C, SIZE, SIZE, generator=generator, dtype=torch.float64)
    layer = layer_of(weight, similarity_for(weight, centre(C)) + dt * M)
    g = F.conv2d(
        F.pad(x, (1, 1, 1, 1), mode="circular"), (weight.flatten(1) @ M).reshape(weight.shape)
    )
    with torch.no_grad():
        step = x + dt * g
        return float((layer(x) - step).abs().max() / step.abs().max())


def layer_of(weight: Tensor, similarity: Tensor) -> ns.nn.StaticConv2d:
    """A similarity layer with these parameters and circular padding."""
    C = len(weight)
    layer = ns.nn.StaticConv2d(
        C, C, SIDE, padding=1, padding_mode="circular", bias=False, dtype=torch.float64,
        structure="unconstrained", scope="full",
    )  # fmt: skip
    with torch.no_grad():
        layer.get_parameter("parametrizations.weight.original").copy_(weight)
        layer.get_parameter("parametrizations.weight.0.numbers.matrix").copy_(similarity)
    return layer


def euler_layer(dt: float) -> ns.nn.StaticConv2d:
    """One step of u' = A u: random kernels, and the similarity W̃ + Δt M that makes them do it."""
    weight = kernels(CHANNELS)
    stencil = torch.zeros(CHANNELS, CHANNELS, SIDE, SIDE, dtype=torch.float64)
    cross = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=torch.float64)
    stencil[0, 0] = stencil[1, 1] = DIFFUSION * cross
    stencil[0, 1, 1, 1], stencil[1, 0, 1, 1] = -ROTATION, ROTATION
    pick, M = (similarity_for(weight, aim) for aim in (centre(CHANNELS), stencil))
    return layer_of(weight, pick + dt * M)


def exact(u: Tensor, time: float) -> Tensor:
    """exp(tA) u, with A written out by shifting images."""
    basis = torch.eye(u.numel(), dtype=u.dtype).reshape(-1, *u.shape)
    around = [basis.roll(shift, axis) for shift in (-1, 1) for axis in (-2, -1)]
    A = DIFFUSION * (torch.stack(around).sum(0) - 4 * basis)
    A[:, 0] -= ROTATION * basis[:, 1]
    A[:, 1] += ROTATION * basis[:, 0]
    A = A.reshape(u.numel(), -1).mT  # row i of the basis became column i
    later: Tensor = torch.linalg.matrix_exp(time * A) @ u.flatten()
    return later.reshape(u.shape)


def converge(halvings: int) -> Numbers:
    """The error at the end for smaller and smaller steps, and pictures of the finest run."""
    u = torch.zeros(CHANNELS, SIZE, SIZE, dtype=torch.float64)
    u[0, 2:5, 2:5], u[1, 5:9, 4:7] = 1.0, -0.7
    true = exact(u, TIME)
    errors, steps = [], [8 * 2**i for i in range(halvings)]
    for count in steps:
        layer, x = euler_layer(TIME / count), u[None]
        with torch.no_grad():
            for _ in range(count):
                x = layer(x)
        errors.append(experiment.relative_error(x[0], true))
    pictures = {"start": u[0].tolist(), "layer": x[0, 0].tolist(), "exact": true[0].tolist()}
    return {"steps": steps, "errors": errors, "pictures": pictures}


def table(numbers: Numbers) -> str:
    rows = []
    for scope, values in numbers["residuals"].items():
        there = [C for C, value in enumerate(values, 1) if value < EXISTS]
        most = max(there, default=0)
        text = f"all up to {most}" if most == len(values) else f"up to {most}"
        whole = there == list(range(1, most + 1))
        rows.append([scope, text if whole else str(there), f"{values[-1]:.1e}"])
    last = len(next(iter(numbers["residuals"].values())))
    first = markdown.table(["scope of W̃", "exists for C", f"residual at C = {last}"], rows)
    ratios = ["", *(f"{r:.3f}" for r in _ratios(numbers))]
    rows = [
        [str(count), f"{error:.2e}", ratio]
        for count, error, ratio in zip(numbers["steps"], numbers["errors"], ratios, strict=True)
    ]
    return first + "\n\n" + markdown.table(["layers (steps)", "relative error", "ratio"], rows)


def _ratios(numbers: Numbers) -> list[float]:
    errors = numbers["errors"]
    return [a / b for a, b in pairwise(errors)]


def conclude(numbers: Numbers) -> str:
    most = {
        scope: max((C for C, value in enumerate(values, 1) if value < EXISTS), default=0)
        for scope, values in numbers["residuals"].items()
    }
    count = len(numbers["residuals"]["full"])
    same = "equals" if numbers["step_difference"] < 1e-12 else "does not equal"
    ratio = _ratios(numbers)[-1]
    order = "first order, as forward Euler is" if abs(ratio - 2) < 0.05 else "not first order"
    return (
        f"The layer with M = W̃ + Δt M' {same} x + Δt g(x): relative difference "
        f"{numbers['step_difference']:.0e}. With the full matrix W̃ exists for random 3×3 kernels "
        f"for C up to {most['full']} of the {count} tested; one block per kernel or channel "
        f"allows C up to {most['kernel']} and {most['channel']}, and the paper's one block per "
        f"layer only C up to {most['layer']}, as counting the equations predicts. Iterated on "
        f"diffusion with rotation, halving Δt finally divides the error by {ratio:.3f} "
        f"({order}), down to {numbers['errors'][-1]:.1e} with {numbers['steps'][-1]} layers, "
        f"all with the same W and M."
    )


def draw(numbers: Numbers) -> Figure:
    figure = Figure(figsize=(10, 6), layout="constrained")
    upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=(1.25, 1))[:, 0]
    left, right = upper.subplots(1, 2)
    for (scope, values), marker in zip(numbers["residuals"].items(), "os^v", strict=True):
        label = f"one M a {scope}" if scope != "full" else "full matrix"
        residuals = [max(value, 1e-16) for value in values]  # zero has no logarithm
        channels = range(1, len(residuals) + 1)
        left.semilogy(channels, residuals, marker=marker, label=label, alpha=0.8)
    left.set(xlabel="channels C = kernels", ylabel="residual of Wᵀ W̃ = E", ylim=(1e-17, 1e2),
             title="Does a W̃ that picks the centre exist?")  # fmt: skip
    left.legend(fontsize=8, loc="center")
    sizes = [TIME / count for count in numbers["steps"]]
    right.loglog(sizes, numbers["errors"], "o-", label="similarity layer, iterated")
    right.loglog(sizes, [numbers["errors"][-1] * s / sizes[-1] for s in sizes], ":",
                 color="grey", label="slope 1")  # fmt: skip
    right.set(
        xlabel="step Δt", ylabel="relative error at t = 1", title="Error against exp(tA) u(0)"
    )
    right.legend()
    titles = ("u(0), first channel", f"t = 1, {numbers['steps'][-1]} layers", "t = 1, exact")
    panels = lower.subplots(1, 3)
    for panel, title, picture in zip(panels, titles, numbers["pictures"].values(), strict=True):
        image = panel.imshow(picture, cmap="RdBu_r", vmin=-1, vmax=1)
        panel.set(title=title, xticks=[], yticks=[])
    lower.colorbar(image, ax=list(panels))
    return figure


if __name__ == "__main__":
    experiment.run(sys.modules[__name__])

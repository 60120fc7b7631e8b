"""Does the factorisation W = Mᵀ W' favour low rank and small nuclear norm, as Section 5.1 hopes?

A matrix of rank 2 (n × m) is recovered from half as many measurements as it has entries: some of
its entries (completion), or random projections (sensing). Gradient descent, from the same small
start Mᵀ W', trains

    W alone                     the layer without similarity
    M and W', both small        the setting of the theory the paper cites (Gunasekar et al. 2017,
                                Arora et al. 2019)
    M and W', M from I          how neural similarity is used: M starts as the identity

and the singular values of Mᵀ W' are recorded. The effective rank is exp(entropy of the singular
values divided by their sum): 2 for two equal ones, whatever their size.

Run: ``python -m experiments.theory.implicit_regularisation``
"""

from __future__ import annotations

import sys

import torch
from matplotlib.figure import Figure
from torch import Tensor

import neural_similarity as ns

from .. import markdown
from . import experiment
from .experiment import Numbers

OPTIONS = {"seeds": "matrices to find", "steps": "steps of gradient descent"}
N, M_OUT, RANK, MEASURED = 16, 12, 2, 96
START, RATE = 0.05, 0.2
TASKS = ("completion", "sensing")
METHODS = ("W alone", "M and W', both small", "M and W', M from I")
QUANTITIES = ("effective rank", "nuclear norm", "error")


def measure(seeds: int = 10, steps: int = 1500) -> Numbers:
    numbers: Numbers = {"seeds": seeds, "steps": steps, "rate": RATE, "start": START}
    for task in TASKS:
        problems = [problem(task, seed) for seed in range(seeds)]
        maps, truth, prime, small = (torch.stack(part) for part in zip(*problems, strict=True))
        numbers[task] = {
            method: descend(method, maps, truth, prime, small, steps) for method in METHODS
        }
        numbers[task]["truth"] = [spectrum(matrix) for matrix in truth]
    return numbers


def problem(task: str, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The measurements, the truth (m × n), small W' (m × n), small M (n × n).

    Measurements are single entries (a mask, m × n) or projections (a matrix, p × nm).
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    left, right = torch.linalg.qr(normal(M_OUT, RANK))[0], torch.linalg.qr(normal(N, RANK))[0]
    truth = left * torch.tensor([1.0, 0.8], dtype=torch.float64) @ right.mT
    if task == "completion":
        entries = torch.randperm(N * M_OUT, generator=generator)[:MEASURED]
        maps = torch.zeros(N * M_OUT, dtype=torch.float64)
        maps[entries] = (N * M_OUT / MEASURED) ** 0.5
        maps = maps.reshape(M_OUT, N)
    else:
        maps = normal(MEASURED, N * M_OUT) / MEASURED**0.5
    return maps, truth, START * normal(M_OUT, N) / N**0.5, START * normal(N, N) / N**0.5


def descend(
    method: str, maps: Tensor, truth: Tensor, prime: Tensor, small: Tensor, steps: int
) -> Numbers:
    """Gradient descent on all seeds at once; they are independent. Recorded ever more rarely."""
    start = merged(prime, small)
    if method == METHODS[0]:
        state = [start.clone()]
    elif method == METHODS[1]:
        state = [prime.clone(), small.clone()]
    else:
        state = [start.clone(), torch.eye(N, dtype=start.dtype).repeat(len(start), 1, 1)]
    for part in state:
        part.requires_grad_()
    looks = sorted({round(10 ** (i / 12)) - 1 for i in range(200)} | {steps})
    history: Numbers = {"steps": [step for step in looks if step <= steps]}
    history_rows = []
    for step in range(steps + 1):
        weight = state[0] if len(state) == 1 else merged(*state)
        loss = 0.5 * observe(maps, weight - truth).square().sum(1)
        if step in history["steps"]:
            history_rows.append(look(weight.detach(), truth, loss.detach()))
        slopes = torch.autograd.grad(loss.sum(), state)
        with torch.no_grad():
            for part, slope in zip(state, slopes, strict=True):
                part -= RATE * slope
    return history | {name: [row[name] for row in history_rows] for name in history_rows[0]}


def observe(maps: Tensor, matrices: Tensor) -> Tensor:
    """The measurements of each seed's matrix, ``(S, p)``."""
    if maps.shape == matrices.shape:
        return (maps * matrices).flatten(1)
    return torch.bmm(maps, matrices.flatten(1)[..., None])[..., 0]


def merged(prime: Tensor, similarity: Tensor) -> Tensor:
    """(Mᵀ W')ᵀ for each seed: ``(S, m, n)`` and ``(S, n, n)`` to ``(S, m, n)``."""
    return torch.vmap(ns.ops.effective_weight)(prime[:, :, None], similarity)[:, :, 0]


def look(weight: Tensor, truth: Tensor, loss: Tensor) -> dict[str, list[float]]:
    values = [spectrum(matrix) for matrix in weight]
    error = (weight - truth).flatten(1).norm(dim=1) / truth.flatten(1).norm(dim=1)
    return {
        "effective rank": [value["effective rank"] for value in values],
        "nuclear norm": [value["nuclear norm"] for value in values],
        "error": error.tolist(),
        "loss": loss.tolist(),
    }


def spectrum(matrix: Tensor) -> dict[str, float]:
    singular = torch.linalg.svdvals(matrix)
    share = singular / singular.sum()
    entropy = -torch.special.xlogy(share, share).sum()
    return {"effective rank": entropy.exp().item(), "nuclear norm": singular.sum().item()}


def table(numbers: Numbers) -> str:
    rows = []
    for task in TASKS:
        true = numbers[task]["truth"][0]
        rows.append(
            [task, "the truth", f"{true['effective rank']:.2f}", f"{true['nuclear norm']:.2f}"]
            + ["0", "0"]
        )
        for method in METHODS:
            run = numbers[task][method]
            cells = []
            for name in QUANTITIES:
                mean, half = experiment.interval(run[name][-1])
                cells.append(f"{mean:.2f} ± {half:.2f}")
            rows.append([task, method, *cells, f"{max(run['loss'][-1]):.0e}"])
    return markdown.table(
        ["task", "trained", "effective rank", "nuclear norm", "relative error", "largest loss"],
        rows,
    )


def conclude(numbers: Numbers) -> str:
    parts = []
    for task in TASKS:
        runs = numbers[task]
        rank, norm, error = (
            [experiment.interval(runs[method][name][-1])[0] for method in METHODS]
            for name in QUANTITIES
        )
        true = runs["truth"][0]
        parts.append(
            f"In {task}, W alone ends with effective rank {rank[0]:.1f} and nuclear norm "
            f"{norm[0]:.2f} (the truth has {true['effective rank']:.1f} and "
            f"{true['nuclear norm']:.2f}) and misses the truth by {error[0]:.0%}. With both "
            f"factors small the rank is {_versus(runs, METHODS[1], 'effective rank')}, the norm "
            f"{_versus(runs, METHODS[1], 'nuclear norm')} and the error "
            f"{_versus(runs, METHODS[1], 'error')}; with M from I, rank, norm and error are "
            f"{_versus(runs, METHODS[2], 'effective rank')}, "
            f"{_versus(runs, METHODS[2], 'nuclear norm')} and {_versus(runs, METHODS[2], 'error')}."
        )
    shares = [_share(numbers[task]) for task in TASKS]
    return (
        " ".join(parts) + f" (±: 95 % interval of the difference to W alone, {numbers['seeds']} "
        f"seeds.) Of the fall in effective rank that small factors bring, the start at the "
        f"identity keeps {shares[0]:.0%} in completion and {shares[1]:.0%} in sensing."
    )


def _versus(runs: Numbers, method: str, name: str) -> str:
    """The difference to W alone, if its interval does not contain zero."""
    pairs = zip(runs[method][name][-1], runs[METHODS[0]][name][-1], strict=True)
    mean, half = experiment.interval([ours - plain for ours, plain in pairs])
    size = f"{abs(mean):.2f} ± {half:.2f}"
    if not abs(mean) > half:
        return f"not clearly different ({mean:+.2f} ± {half:.2f})"
    return f"{'lower' if mean < 0 else 'higher'} by {size}"


def _share(runs: Numbers) -> float:
    plain, small, eye = (
        experiment.interval(runs[method]["effective rank"][-1])[0] for method in METHODS
    )
    return (plain - eye) / (plain - small)


def draw(numbers: Numbers) -> Figure:
    figure = Figure(figsize=(9, 5), layout="constrained")
    panels = figure.subplots(len(TASKS), len(QUANTITIES), sharex=True)
    for row, task in zip(panels, TASKS, strict=True):
        for panel, name in zip(row, QUANTITIES, strict=True):
            for method, style in zip(METHODS, ("-", "--", "-."), strict=True):
                run = numbers[task][method]
                steps = [step + 1 for step in run["steps"]]
                middle, half = zip(
                    *(experiment.interval(seeds) for seeds in run[name]), strict=True
                )
                panel.semilogx(steps, middle, style, label=method)
                low = [m - h for m, h in zip(middle, half, strict=True)]
                high = [m + h for m, h in zip(middle, half, strict=True)]
                panel.fill_between(steps, low, high, alpha=0.2)
            true = numbers[task]["truth"][0].get(name, 0.0)
            panel.axhline(true, color="grey", linestyle=":", label="the truth")
            panel.set(title=f"{task}: {name}", ylim=(0, None))
    for panel in panels[-1]:
        panel.set_xlabel("step + 1")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


if __name__ == "__main__":
    experiment.run(sys.modules[__name__])

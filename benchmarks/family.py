"""The published layers of ``nn.family``, compared with the usual way to write them.

The usual way is that of the authors' portable code: ``unfold`` stores the windows of the whole
batch, and a product with them follows (``usual_ways.py``). Both compute the same function of the
same parameters, which is checked. Measured are time and peak memory, forward and with backward.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neural_similarity.nn import family

from . import usual_ways
from .timing import Timing, race

__all__ = ["LAYERS", "SIZES", "peak_memory", "run", "step"]

# (batch, channels, side)
SIZES = ((8, 32, 56), (16, 64, 28))
DIRECTIONS = ("forward", "forward and backward")
WAYS = ("neural-similarity", "usual way")
SIGMAS = {"sigma_space": 2.0, "sigma_colour": 1.0}


class Layer(NamedTuple):
    """A layer of C channels, how it is usually written, and the channels of its inputs."""

    create: Callable[[int], nn.Module]
    usual_way: Callable[..., Tensor]
    inputs: tuple[int | None, ...] = (None,)  # None means C


LAYERS = {
    "involution 7×7": Layer(lambda C: family.Involution2d(C, 7), usual_ways.involution),
    "involution 3×3": Layer(lambda C: family.Involution2d(C, 3), usual_ways.involution),
    "local attention 7×7": Layer(
        lambda C: family.LocalAttention2d(C, C, 7, heads=4), usual_ways.local_attention
    ),
    "pixel-adaptive 5×5": Layer(
        lambda C: family.PixelAdaptiveConv2d(C, C, 5, padding=2),
        usual_ways.pixel_adaptive,
        (None, 8),
    ),
    "modulated 3×3": Layer(
        lambda C: family.ModulatedConv2d(C, C, 3, padding=1, deform_groups=2),
        usual_ways.modulated,
    ),
    "spatial attention 3×3": Layer(
        lambda C: family.SpatialAttentionConv2d(C, C, 3, padding=1), usual_ways.spatial_attention
    ),
    "bilateral filter 5×5": Layer(
        lambda C: family.BilateralFilter2d(5, **SIGMAS), usual_ways.bilateral, (3,)
    ),
}
"""Squeeze-and-excitation and the spatial transformer have one way only: they need no windows."""


def run(rounds: int) -> dict[str, list[Timing]]:
    tables = {}
    for name in LAYERS:
        for size in SIZES:
            check_equal(name, size)
            for direction in DIRECTIONS:
                title = f"{name}, {direction}, {size}"
                tables[title] = race(
                    {way: step(name, way, direction, size) for way in WAYS}, rounds
                )
                memory = {way: peak_memory(name, way, direction, size) for way in WAYS}
                tables[f"{title}, peak memory, MB"] = [
                    Timing.of_ratio(way, megabytes) for way, megabytes in memory.items()
                ]
    return tables


def step(name: str, way: str, direction: str, size: tuple[int, int, int]) -> Callable[[], object]:
    """One pass of a layer, as a function without arguments."""
    layer, inputs = make(name, size)

    usual = partial(LAYERS[name].usual_way, layer)
    compute: Callable[..., Tensor] = layer if way == WAYS[0] else usual
    if direction == "forward":
        return torch.no_grad()(lambda: compute(*inputs))
    leaves = [input.requires_grad_() for input in inputs]
    operands = [*leaves, *layer.parameters()]

    def both() -> object:
        return torch.autograd.grad(compute(*leaves).sum(), operands)

    return both


def make(name: str, size: tuple[int, int, int]) -> tuple[Any, list[Tensor]]:
    torch.manual_seed(0)
    batch, channels, side = size
    layer = LAYERS[name].create(channels)
    shapes = [(batch, channels if C is None else C, side, side) for C in LAYERS[name].inputs]
    return layer, [torch.randn(shape) for shape in shapes]


def check_equal(name: str, size: tuple[int, int, int]) -> None:
    """Raise unless both ways compute the same function."""
    layer, inputs = make(name, size)
    with torch.no_grad():
        torch.testing.assert_close(
            layer(*inputs), LAYERS[name].usual_way(layer, *inputs), rtol=1e-3, atol=1e-3
        )


def peak_memory(name: str, way: str, direction: str, size: tuple[int, int, int]) -> float:
    """Megabytes that one pass adds to the resident size of a process of its own."""
    code = (
        f"import torch; torch.set_num_threads({torch.get_num_threads()})\n"
        f"from benchmarks.family import memory_of_a_step\n"
        f"print(memory_of_a_step({name!r}, {way!r}, {direction!r}, {size!r}))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(process.stdout)


def memory_of_a_step(name: str, way: str, direction: str, size: tuple[int, int, int]) -> float:
    """Megabytes that one pass adds to this process; needs Linux."""
    step(name, way, direction, (2, size[1], 8))()  # loads what every first call loads
    whole_step = step(name, way, direction, size)
    before = peak()
    whole_step()
    return peak() - before


def peak() -> float:
    """The largest resident size so far, in megabytes.

    ``resource.getrusage`` would not do: there a process starts with the size of its parent.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024

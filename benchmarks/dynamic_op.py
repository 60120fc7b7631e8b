"""The dynamic operation, compared with a plain convolution and other ways to write it.

All contestants compute the same function, except the plain convolution and the deformable one,
which show the price of the similarity. Both forward alone and forward with backward are measured.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.ops import similarity_conv2d
from neural_similarity.ops.factored_similarity import (
    ConvSettings,
    factored_conv2d,
    written_out_conv2d,
)
from neural_similarity.ops.similarity_conv import compiled, dispatch

from .operands import (
    DIRECTIONS,
    FACTORED,
    GROUPS,
    KINDS,
    SHAPES,
    TAPS,
    Function,
    make,
    plain,
    step,
)
from .timing import Timing, race

NEWER_KINDS = (
    "diagonal per image",
    "unconstrained per image",
    f"diagonal, {GROUPS} groups of channels",
)


def run(rounds: int) -> dict[str, list[Timing]]:
    """One similarity for all channels at each position, as in the paper."""
    return race_kinds(KINDS, rounds)


def run_newer(rounds: int) -> dict[str, list[Timing]]:
    """One similarity per image, and groups of channels."""
    return race_kinds(NEWER_KINDS, rounds)


def run_factored(rounds: int) -> dict[str, list[Timing]]:
    """A factor per channel at each position, or one per channel times one per tap."""
    return race_kinds(FACTORED, rounds)


def race_kinds(kinds: Sequence[str], rounds: int) -> dict[str, list[Timing]]:
    tables = {}
    for kind in kinds:
        ratios: dict[tuple[str, str], list[float]] = {}
        for shape in SHAPES:
            tensors = make(shape, kind)
            # A matrix at every position needs more multiply-adds: compare per multiply-add.
            work = 1 + TAPS / shape[2] if kind == "unconstrained" else 1.0
            for direction in DIRECTIONS:
                timings = race(contestants(kind, direction, tensors), rounds)
                timings = [t if i == 0 else t.over(work) for i, t in enumerate(timings)]
                tables[f"{kind}, {direction}, {shape}"] = timings
                for t in timings:
                    ratios.setdefault((direction, t.name), []).append(t.ratio)
        for direction in DIRECTIONS:
            tables[f"{kind}, {direction}, geometric mean over the shapes"] = [
                Timing.of_ratio(name, statistics.geometric_mean(values))
                for (where, name), values in ratios.items()
                if where == direction
            ]
    return tables


def contestants(
    kind: str, direction: str, tensors: tuple[Tensor, Tensor, Tensor]
) -> dict[str, Callable[[], object]]:
    functions: dict[str, Function] = {"plain convolution": plain}
    if kind in FACTORED:
        settings = ConvSettings((1, 1), (1, 1), (1, 1), 1)
        if compiled.load() is not None:
            functions["factors kept apart"] = partial(factored_conv2d, settings=settings)
        functions["M written out"] = partial(written_out_conv2d, settings=settings)
        return {name: step(direction, function, tensors) for name, function in functions.items()}
    if compiled.load() is not None:
        functions["neural-similarity, compiled"] = ours
    functions["neural-similarity, pure"] = ours
    if kind in KINDS:
        functions["unfold, multiply"] = unfold
    if kind == "diagonal":
        functions["nine-fold filters"] = nine_fold
        if (deformable := load_deform_conv2d()) is not None:
            functions["deform_conv2d, no offset"] = deformable
    runs = {name: step(direction, function, tensors) for name, function in functions.items()}
    if "groups" in kind:
        input, weight, similarity = tensors
        one = (input, weight, similarity[:, :TAPS].contiguous())
        runs["neural-similarity, one group"] = step(direction, ours, one)
    runs["neural-similarity, pure"] = dispatch.only("panels")(runs["neural-similarity, pure"])
    return runs


def ours(input: Tensor, weight: Tensor, similarity: Tensor) -> Tensor:
    groups = similarity.shape[1] // TAPS
    return similarity_conv2d(input, weight, similarity, padding=1, similarity_groups=groups)


def unfold(input: Tensor, weight: Tensor, similarity: Tensor) -> Tensor:
    """im2col of the whole batch, mixed by M, times the kernels."""
    N, C, H, W = input.shape
    patches = F.unfold(input, 3, padding=1).view(N, C, TAPS, H * W)
    if similarity.dim() == 4:
        groups = similarity.shape[1] // TAPS
        factors = similarity.reshape(N, groups, 1, TAPS, -1)
        mixed = (patches.view(N, groups, -1, TAPS, H * W) * factors).view_as(patches)
    else:
        similarity = similarity.expand(-1, -1, -1, H, W)
        mixed = torch.einsum("nijl,ncjl->ncil", similarity.flatten(3), patches)
    return (weight.reshape(len(weight), -1) @ mixed.flatten(1, 2)).view(N, -1, H, W)


def nine_fold(input: Tensor, weight: Tensor, similarity: Tensor) -> Tensor:
    """The authors' formulation: nine 1-tap responses of every kernel, weighted and summed."""
    O, C = weight.shape[:2]
    single = torch.zeros(O, TAPS, C, TAPS)
    taps = torch.arange(TAPS)
    single[:, taps, :, taps] = weight.reshape(O, C, TAPS).permute(2, 0, 1)
    filters = single.reshape(O * TAPS, C, 3, 3).contiguous(memory_format=torch.channels_last)
    responses = F.conv2d(input, filters, padding=1)
    responses = responses.view(len(input), O, TAPS, *responses.shape[2:])
    return (responses * similarity[:, None]).sum(2)


def load_deform_conv2d() -> Function | None:
    """torchvision's modulated deformable convolution, if it is installed."""
    try:
        from torchvision.ops import deform_conv2d
    except Exception:  # torchvision may be installed and fail to load
        return None

    def run(input: Tensor, weight: Tensor, similarity: Tensor) -> Tensor:
        offset = input.new_zeros(len(input), 2 * TAPS, *input.shape[2:])
        output: Tensor = deform_conv2d(input, offset, weight, padding=1, mask=similarity)
        return output

    return run

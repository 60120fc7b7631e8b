"""NaN and infinity in any operand land where the reference puts them, on every path.

A sample runs by default, and all cases with ``NSL_ATTACKS=all``.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import pytest
import torch
from support.cases import GEOMETRIES, SMALL, STRUCTURES
from support.fast_cases import BACKWARD, CASES, FORMATS, FORMS, FORWARD, operands, settings
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.ops.similarity_conv import operator, reference

pytestmark = pytest.mark.attack

ALL = os.environ.get("NSL_ATTACKS") == "all"
BATCH = 40 if ALL else 20  # cases of one test
BATCHES = 100 if ALL else 2
LAYERS = sorted(STRUCTURES) if ALL else ["diagonal", "unconstrained", "kernel_shape-psd"]
NOT_FINITE = (float("nan"), float("inf"), -float("inf"))
RESULTS = ("output", "gradient of input", "gradient of weight", "gradient of similarity")


def plant(draw: random.Random, tensors: list[Tensor]) -> str:
    """Write one to four values that are not finite into some of the tensors."""
    chosen = draw.sample(range(len(tensors)), draw.choice((1, 1, 1, 2)))
    for which in chosen:
        for _ in range(draw.choice((1, 1, 2))):
            place = tuple(draw.randrange(size) for size in tensors[which].shape)
            tensors[which][place] = draw.choice(NOT_FINITE)
    return f"planted in {chosen}"


def expect_same_places(found: list[Tensor], expected: list[Tensor], what: str) -> None:
    for name, one, truth in zip(RESULTS, found, expected, strict=False):
        if one.numel():  # empty where no gradient was asked for
            wrong = (one.isfinite() != truth.isfinite()).sum()
            assert not wrong, f"{name}: {wrong} places differ ({what})"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_operator(path: str, batch: int, count_case: Callable[[], None]) -> None:
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        count_case()
        draw = random.Random(seed)
        name, form, shared = draw.choice(list(CASES)), draw.choice(FORMS), draw.random() < 0.5
        dtype, layout = draw.choice((torch.float32, torch.float64)), draw.choice(list(FORMATS))
        case = CASES[name]
        ours = operands(case, form, shared, dtype=dtype, memory_format=FORMATS[layout])
        gy = torch.randn(case.batch, case.kernels, *case.positions, dtype=dtype)
        what = f"seed {seed}, {name}, {form}, {shared=}, {plant(draw, [*ours, gy])}"

        leaves = [tensor.clone().requires_grad_() for tensor in ours]
        y = reference.similarity_conv2d(*leaves, *settings(case, form))
        expected = [y.detach(), *torch.autograd.grad(y, leaves, gy)]
        mask = draw.choice(([True] * 3, [True] * 3, [draw.random() < 0.5 for _ in range(3)]))
        found = [
            FORWARD(*ours, *settings(case, form)),
            *BACKWARD(gy, *ours, *settings(case, form), mask),
        ]
        expect_same_places(found, expected, what)

        y = operator.traceable(*leaves, *settings(case, form))
        found = [y.detach(), *torch.autograd.grad(y, leaves, gy)]
        expect_same_places(found, expected, f"traceable, {what}")


@pytest.mark.parametrize("threads", [2, 3] if ALL else [3])
def test_several_threads(path: str, threads: int, count_case: Callable[[], None]) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for batch in range(5 if ALL else 1):
            test_the_operator(path, 1000 + batch, count_case)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("structure", LAYERS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_layers(
    path: str,
    name: str,
    structure: str,
    monkeypatch: pytest.MonkeyPatch,
    count_case: Callable[[], None],
) -> None:
    geometry = GEOMETRIES[name]
    for seed in range(6 if ALL else 1):
        count_case()
        draw = random.Random(f"{name} {structure} {seed}")
        torch.manual_seed(seed)
        conv = ns.nn.DynamicConv2d(
            geometry.channels, geometry.kernels, geometry.kernel, **geometry.options,
            structure=STRUCTURES[structure], predictor=SMALL,
        ).eval()  # fmt: skip
        input, gy = geometry.input(), torch.randn_like(conv(geometry.input()))
        what = plant(draw, [input, conv.weight.data, gy])
        found = output_and_gradients(conv, input, gy)
        with monkeypatch.context() as patch:
            patch.setattr(operator, "similarity_conv2d", reference.similarity_conv2d)
            expected = output_and_gradients(conv, input, gy)
        expect_same_places(found, expected, f"seed {seed}, {what}")


def output_and_gradients(conv: nn.Conv2d, input: Tensor, gy: Tensor) -> list[Tensor]:
    """In the order of ``RESULTS``, as far as they go."""
    leaves = [input.clone().requires_grad_(), conv.weight]
    y = conv(leaves[0])
    return [y.detach(), *torch.autograd.grad(y, leaves, gy)]

"""The registered operator inside PyTorch: opcheck, autocast, transforms, compile, export, ONNX."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from support.cases import KINDS, Geometry
from support.fast_cases import (
    BACKWARD,
    CASES,
    DIAGONAL,
    FORMATS,
    FORWARD,
    FULL,
    TRACED,
    operands,
    same,
    settings,
    torch_warns_about_itself,
)
from torch import Tensor
from torch.nn import functional

from neural_similarity.ops.similarity_conv import dispatch, operator


@pytest.mark.parametrize("create_graph", [False, True])
def test_only_what_is_needed(monkeypatch: pytest.MonkeyPatch, create_graph: bool) -> None:
    case = CASES["rgb"]
    x, weight, similarity = operands(case)
    kernels = dispatch.choose(x)
    seen: list[list[bool]] = []

    def spy(*args: Any) -> Any:
        seen.append(list(args[-1]))
        return kernels.backward(*args)

    spied = SimpleNamespace(forward=kernels.forward, backward=spy)
    monkeypatch.setattr(dispatch, "choose", lambda input: spied)
    y = operator.similarity_conv2d(
        x, weight.requires_grad_(), similarity.requires_grad_(), *settings(case)
    )
    torch.autograd.grad(y.sum(), [weight, similarity], create_graph=create_graph)
    assert seen == [[False, True, True]]


@pytest.mark.parametrize(
    ("form", "layout"), [(FULL, "nchw"), ("diagonal per group and image", "nhwc")]
)
def test_opcheck(path: str, form: str, layout: str) -> None:
    case = CASES["strided"]
    ours = operands(case, form, dtype=torch.float32, memory_format=FORMATS[layout])
    if layout == "nhwc":  # taps last, as a channels-last predictor leaves them
        axes = tuple(range(1, ours[2].dim() - 2))
        last = tuple(axis - len(axes) - 1 for axis in axes)
        ours = (*ours[:2], ours[2].movedim(axes, last).contiguous().movedim(last, axes))
    leaves = [t.requires_grad_() for t in ours]
    torch.library.opcheck(FORWARD, (*leaves, *settings(case, form)))
    gy = torch.randn(case.batch, case.kernels, *case.positions, requires_grad=True)
    for mask in ([True, True, True], [False, True, False]):
        torch.library.opcheck(BACKWARD, (gy, *leaves, *settings(case, form), mask))


def test_autocast(path: str) -> None:
    case = CASES["wide"]
    ours = [t.requires_grad_() for t in operands(case, dtype=torch.float32)]
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            y = FORWARD(*ours, *settings(case))
        assert y.dtype == dtype
        gradients = torch.autograd.grad(y.float().sum(), ours)
        assert all(g.dtype == torch.float32 for g in gradients)
    double = operands(case)
    with torch.autocast("cpu"):
        assert FORWARD(*double, *settings(case)).dtype == torch.float64


class Layer(torch.nn.Module):
    """A similarity computed from the input, so that every size follows from the input's."""

    def __init__(self, case: Geometry, form: str) -> None:
        super().__init__()
        self.case, self.form = case, form
        _, weight, _ = operands(case, dtype=torch.float32)
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        case, kind = self.case, KINDS[self.form]
        stencil = x.new_ones(1, case.channels, *case.kernel)
        base = functional.conv2d(x, stencil, None, case.stride, case.padding, case.dilation)
        pooled = {"image": (2, 3), "row": (3,), "column": (2,)}.get(kind.axes)
        if pooled is not None:
            base = base.mean(pooled, keepdim=True)
        taps = kind.shape(case)[1:-2]
        scale = torch.linspace(-1, 1, math.prod(taps))
        factors = torch.sigmoid(base * scale.view(1, -1, 1, 1)).unflatten(1, taps)
        return operator.similarity_conv2d(x, self.weight, factors, *settings(case, self.form))


EXPORTED = Geometry(2, 4, 6, (9, 12), (3, 2), (2, 1), (1, 2), (1, 2), 2)


@torch_warns_about_itself
@pytest.mark.parametrize(
    "form",
    [
        # tests/convert/test_interop.py compiles a network with a matrix at every position.
        pytest.param(form, marks=() if form == TRACED[-1] else pytest.mark.slow)
        for form in TRACED
    ],
)
def test_compile(form: str) -> None:
    torch.compiler.reset()
    layer = Layer(EXPORTED, form)
    fast = torch.compile(layer, fullgraph=True, dynamic=True)
    for batch, size in ((2, (9, 12)), (3, (10, 15))):
        for layout in FORMATS.values():
            x = torch.randn(batch, 4, *size).to(memory_format=layout).requires_grad_()
            expected = torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])
            found = torch.autograd.grad(fast(x).square().sum(), [x, layer.weight])
            for one, other in zip(found, expected, strict=True):
                same(one, other, 1e-5)


class Pooled(torch.nn.Module):
    """A similarity made without a convolution, whose own backward is compiled per image size."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 4, 3, 3))
        self.scale = torch.nn.Parameter(torch.randn(1, 9, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        similarity = x.mean(1, keepdim=True) * self.scale
        return operator.similarity_conv2d(x, self.weight, similarity, padding=(1, 1))


@torch_warns_about_itself
def test_compile_once_for_all_sizes() -> None:
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("inductor")
    layer = Pooled()
    fast = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
    for batch, size in ((2, (8, 12)), (3, (10, 15)), (5, (7, 11))):
        x = torch.randn(batch, 4, *size, requires_grad=True)
        leaves = [x, *layer.parameters()]
        expected = torch.autograd.grad(layer(x).square().sum(), leaves)
        found = torch.autograd.grad(fast(x).square().sum(), leaves)
        for one, other in zip(found, expected, strict=True):
            same(one, other, 1e-5)
    assert counter.frame_count == 1


@torch_warns_about_itself
def test_compile_under_autocast() -> None:
    torch.compiler.reset()
    layer = Layer(EXPORTED, DIAGONAL)
    fast = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, 4, 9, 12, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = layer(x), fast(x)
    assert found.dtype == torch.bfloat16
    same(found, expected, 2e-2)
    (gradient,) = torch.autograd.grad(found.float().square().sum(), x)
    assert gradient.dtype == torch.float32


@pytest.mark.parametrize("form", TRACED)
def test_export(form: str) -> None:
    layer = Layer(EXPORTED, form)
    dim = torch.export.Dim
    shapes = ({0: dim("n", min=2, max=64), 2: dim("h", min=8, max=64), 3: dim("w", min=8, max=64)},)
    program = torch.export.export(
        layer, (torch.randn(2, 4, 9, 12),), dynamic_shapes=shapes, strict=False
    )
    assert any(node.target is FORWARD for node in program.graph.nodes)
    for batch, size in ((2, (9, 12)), (5, (14, 11))):
        x = torch.randn(batch, 4, *size)
        same(program.module()(x), layer(x), 1e-5)


@pytest.mark.parametrize(
    "form", [pytest.param(DIAGONAL, marks=pytest.mark.slow), "diagonal per group and image"]
)
def test_onnx(form: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    layer = Layer(EXPORTED, form).eval()
    dim = torch.export.Dim
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            layer,
            (torch.randn(2, 4, 9, 12),),
            dynamo=True,
            dynamic_shapes=({0: dim("n"), 2: dim("h", min=8), 3: dim("w", min=8)},),
            verbose=False,
        )
    assert program is not None
    program.save(tmp_path / "layer.onnx")
    session = runtime.InferenceSession(tmp_path / "layer.onnx", providers=["CPUExecutionProvider"])
    for batch, size in ((2, (9, 12)), (5, (14, 11))):
        x = torch.randn(batch, 4, *size)
        (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            same(torch.from_numpy(found), layer(x), 1e-5)


@torch_warns_about_itself
def test_functional_transforms_and_forward_mode() -> None:
    case = CASES["strided"]
    x, weight, similarity = operands(case)

    def f(w: Tensor) -> Tensor:
        return operator.similarity_conv2d(x, w, similarity, *settings(case))

    tangent = torch.randn_like(weight)
    value, derivative = torch.func.jvp(f, (weight,), (tangent,))
    same(value, f(weight), 1e-12)
    same(derivative, f(tangent), 1e-12)  # it is linear
    gradient = torch.func.grad(lambda w: f(w).square().sum())(weight)
    leaf = weight.clone().requires_grad_()
    (truth,) = torch.autograd.grad(f(leaf).square().sum(), leaf)
    same(gradient, truth, 1e-12)
    batch = torch.stack([weight, tangent])
    same(torch.func.vmap(f)(batch), torch.stack([f(weight), f(tangent)]), 1e-12)

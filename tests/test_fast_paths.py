"""Both fast paths of the similarity convolution against the reference, and inside PyTorch."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.testing
from cases import EVEN, GEOMETRIES, Geometry
from torch import Tensor
from torch.nn import functional

from neural_similarity.ops.similarity_conv import compiled, panels, reference, registered

FORWARD = torch.ops.neural_similarity.similarity_conv2d.default
BACKWARD = torch.ops.neural_similarity.similarity_conv2d_backward.default


CASES = {
    **GEOMETRIES,
    **EVEN,
    "depthwise, one output": Geometry(2, 6, 6, (7, 8), (3, 2), padding=(2, 1), groups=6),
    "wide": Geometry(5, 70, 45, (9, 6), (3, 3), padding=(1, 1)),
    "deep": Geometry(1, 200, 18, (23, 5), (3, 2), padding=(2, 1)),
    "far padding": Geometry(2, 3, 4, (2, 3), (2, 2), padding=(5, 4)),
    "single": Geometry(1, 8, 9, (31, 7), (5, 3), padding=(2, 1)),
    "rgb": Geometry(2, 3, 5, (7, 11), (3, 3), padding=(1, 1)),
}
torch_warns_about_itself = pytest.mark.filterwarnings("ignore::DeprecationWarning")
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def operands(
    case: Geometry, full: bool = False, shared: bool = False, **options: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Random input, weight and similarity, the same for every dtype."""
    generator = torch.Generator().manual_seed(0)
    layout = options.pop("memory_format", torch.contiguous_format)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(**options)

    taps = case.kernel[0] * case.kernel[1]
    x = random(case.batch, case.channels, *case.image).to(memory_format=layout)
    weight = random(case.kernels, case.channels // case.groups, *case.kernel)
    batch = 1 if shared else case.batch
    return x, weight, random(batch, *(taps,) * (2 if full else 1), *case.positions)


def settings(case: Geometry) -> tuple[Any, Any, Any, Any]:
    return case.stride, case.padding, case.dilation, case.groups


def everything(x: Tensor, weight: Tensor, similarity: Tensor, case: Geometry) -> list[Tensor]:
    """Reference output and gradients, and the output's gradient they are for."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, similarity)]
    y = reference.similarity_conv2d(*leaves, *settings(case))
    gy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gy = gy.to(y.dtype)
    return [gy, y.detach(), *torch.autograd.grad(y, leaves, gy)]


@pytest.fixture(params=["compiled", "pure"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either path, chosen behind the operator's back."""
    if request.param == "compiled" and compiled.load() is None:
        pytest.skip("no compiler")
    if request.param == "pure":
        monkeypatch.setattr(registered, "_choose", lambda input: panels)
        monkeypatch.setattr(panels, "_CPU_PANEL", 60_000)  # several pieces, some of rows
    return str(request.param)


def same(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    scale = expected.abs().max().clamp(min=1e-30) if expected.numel() else 1.0
    error = (found.double() - expected.double()).abs() / scale
    assert not error.numel() or error.max() <= tolerance, error.max()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("layout", FORMATS)
def test_float64(path: str, name: str, full: bool, shared: bool, layout: str) -> None:
    case = CASES[name]
    ours = operands(case, full, shared, memory_format=FORMATS[layout])
    gy, *expected = everything(*ours, case)
    y = FORWARD(*ours, *settings(case))
    assert y.is_contiguous(memory_format=FORMATS[layout])
    found = BACKWARD(gy, *ours, *settings(case), [True] * 3)
    for one, other in zip((y, *found), expected, strict=True):
        same(one, other, 1e-12)


@pytest.mark.parametrize("name", ["strided", "grouped", "wide"])
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_mask(path: str, name: str, full: bool) -> None:
    case = CASES[name]
    ours = operands(case, full)
    gy, _, *expected = everything(*ours, case)
    for mask in itertools.product([False, True], repeat=3):
        found = BACKWARD(gy, *ours, *settings(case), list(mask))
        for wanted, one, other in zip(mask, found, expected, strict=True):
            if wanted:
                same(one, other, 1e-12)
            else:
                assert one.numel() == 0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_float32_as_exact_as_plain(path: str, name: str, full: bool) -> None:
    case = CASES[name]
    exact = operands(case, full)
    gy, *expected = everything(*exact, case)
    ours = operands(case, full, dtype=torch.float32)
    _, *plain = everything(*ours, case)
    found = [
        FORWARD(*ours, *settings(case)),
        *BACKWARD(gy.float(), *ours, *settings(case), [True] * 3),
    ]
    for one, theirs, truth in zip(found, plain, expected, strict=True):
        tiny = 1e-7 * truth.abs().max().item() * 4
        allowed = 2 * (theirs - truth).abs().max().item() + tiny
        assert (one - truth).abs().max().item() <= allowed


@pytest.mark.parametrize("name", ["strided", "grouped", "wide"])
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_reduced_precision(path: str, name: str, full: bool, dtype: torch.dtype) -> None:
    case = CASES[name]
    rounded = operands(case, full, dtype=dtype)
    x, weight, similarity = (t.double() for t in rounded)
    gy, *expected = everything(x, weight, similarity, case)
    gy_rounded = gy.to(dtype)
    found = [
        FORWARD(*rounded, *settings(case)),
        *BACKWARD(gy_rounded, *rounded, *settings(case), [True] * 3),
    ]
    for one, truth in zip(found, expected, strict=True):
        assert one.dtype == dtype
        same(one, truth, 2e-2)


def test_strided_operands(path: str) -> None:
    case = CASES["strided"]
    x, weight, similarity = operands(case)
    _, expected, *_ = everything(x, weight, similarity, case)
    x = x.repeat_interleave(2, 3)[..., ::2]
    similarity = similarity.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    weight = weight.to(memory_format=torch.channels_last)
    same(FORWARD(x, weight, similarity, *settings(case)), expected, 1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["single", "deep", "strided"])
def test_any_number_of_threads(threads: int, name: str) -> None:
    if (kernels := compiled.load()) is None:
        pytest.skip("no compiler")
    case, before = CASES[name], torch.get_num_threads()
    ours = operands(case)
    gy, *expected = everything(*ours, case)
    try:
        torch.set_num_threads(threads)
        runs = [
            [
                kernels.forward(*ours, *settings(case)),
                *kernels.backward(gy, *ours, *settings(case), [True] * 3),
            ]
            for _ in range(2)
        ]
    finally:
        torch.set_num_threads(before)
    for one, again, truth in zip(*runs, expected, strict=True):
        same(one, truth, 1e-12)
        assert torch.equal(one, again)


def test_several_threads_at_once(path: str) -> None:
    case = CASES["wide"]
    ours = operands(case)
    expected = FORWARD(*ours, *settings(case))
    found: list[Tensor] = []
    workers = [
        threading.Thread(target=lambda: found.append(FORWARD(*ours, *settings(case))))
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 4
    for one in found:
        same(one, expected, 1e-13)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_empty(path: str, full: bool, shared: bool) -> None:
    cases = [Geometry(0, 3, 5, (7, 6), (3, 2)), Geometry(2, 3, 5, (2, 6), (3, 2))]
    for case in cases:
        ours = operands(case, full, shared)
        y = FORWARD(*ours, *settings(case))
        assert y.shape == (case.batch, 5, *case.positions)
        found = BACKWARD(y, *ours, *settings(case), [True] * 3)
        for one, like in zip(found, ours, strict=True):
            assert one.shape == like.shape
            assert not one.any()


def test_nan_spreads(path: str) -> None:
    case = CASES["rgb"]
    for place in range(3):
        ours = operands(case)
        # Neither a border position nor a border pixel: its product with padding may be anything.
        ours[place][(1,) * (ours[place].dim() - 2) + (2, 2)] = float("nan")
        assert FORWARD(*ours, *settings(case)).isnan().any()
    x, weight, similarity = operands(case)
    x[0, 0, 3, 5] = float("nan")
    touched = FORWARD(x, weight, similarity, *settings(case)).isnan().any(1)
    expected = torch.zeros_like(touched)
    expected[0, 2:5, 4:7] = True
    assert torch.equal(touched, expected)


def test_misfits_are_refused(path: str) -> None:
    case = CASES["rgb"]
    x, weight, similarity = operands(case)
    for wrong in (
        (x[:, :2], weight, similarity),
        (x, weight, similarity[:, 1:]),
        (x, weight, similarity[..., 1:]),
        (x, weight, similarity.expand(2, -1, -1, -1)[:0]),
        (x.float(), weight, similarity),
        (x[0], weight, similarity),
    ):
        with pytest.raises((ValueError, RuntimeError)):
            FORWARD(*wrong, *settings(case))


SMALL = {
    "oblong": Geometry(2, 2, 3, (4, 5), (3, 2), (2, 1), (1, 1), (1, 2)),
    "groups": Geometry(2, 4, 2, (3, 4), (2, 3), (1, 2), (1, 1), (1, 1), 2),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_gradcheck(path: str, name: str, full: bool, shared: bool) -> None:
    case = SMALL[name]
    ours = [t.requires_grad_() for t in operands(case, full, shared)]

    def run(x: Tensor, weight: Tensor, similarity: Tensor) -> Tensor:
        return registered.similarity_conv2d(x, weight, similarity, *settings(case))

    assert torch.autograd.gradcheck(run, ours, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, ours, fast_mode=True)


def test_third_order(path: str) -> None:
    case = SMALL["oblong"]
    ours = [t.requires_grad_() for t in operands(case)]

    def second(*tensors: Tensor) -> tuple[Tensor, ...]:
        x, weight, similarity = tensors
        y = registered.similarity_conv2d(x, weight, similarity, *settings(case)).square().sum()
        first = torch.autograd.grad(y, tensors, create_graph=True)
        total = torch.stack([g.square().sum() for g in first]).sum()
        return torch.autograd.grad(total, tensors, create_graph=True)

    assert torch.autograd.gradcheck(second, ours, fast_mode=True)


def test_only_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["rgb"]
    seen: list[list[bool]] = []

    def spy(*args: Any) -> Any:
        seen.append(list(args[-1]))
        return BACKWARD(*args)

    monkeypatch.setattr(registered, "_BACKWARD", spy)
    x, weight, similarity = operands(case)
    y = registered.similarity_conv2d(
        x, weight.requires_grad_(), similarity.requires_grad_(), *settings(case)
    )
    torch.autograd.grad(y.sum(), [weight, similarity])
    assert seen == [[False, True, True]]


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("layout", FORMATS)
def test_opcheck(path: str, full: bool, layout: str) -> None:
    case = CASES["strided"]
    ours = operands(case, full, dtype=torch.float32, memory_format=FORMATS[layout])
    leaves = [t.requires_grad_() for t in ours]
    torch.library.opcheck(FORWARD, (*leaves, *settings(case)))
    gy = torch.randn(case.batch, case.kernels, *case.positions, requires_grad=True)
    for mask in ([True, True, True], [False, True, False]):
        torch.library.opcheck(BACKWARD, (gy, *leaves, *settings(case), mask))


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

    def __init__(self, case: Geometry, full: bool) -> None:
        super().__init__()
        self.case, self.full = case, full
        _, weight, _ = operands(case, dtype=torch.float32)
        self.weight = torch.nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        case, taps = self.case, self.case.kernel[0] * self.case.kernel[1]
        stencil = x.new_ones(1, case.channels, *case.kernel)
        base = functional.conv2d(x, stencil, None, case.stride, case.padding, case.dilation)
        scale = torch.linspace(-1, 1, taps * (taps if self.full else 1))
        factors = torch.sigmoid(base * scale.view(1, -1, 1, 1))
        if self.full:
            factors = factors.view(-1, taps, taps, base.shape[2], base.shape[3])
        return registered.similarity_conv2d(x, self.weight, factors, *settings(case))


EXPORTED = Geometry(2, 4, 6, (9, 12), (3, 2), (2, 1), (1, 2), (1, 2), 2)


@torch_warns_about_itself
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_compile(full: bool) -> None:
    torch.compiler.reset()
    layer = Layer(EXPORTED, full)
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
        return registered.similarity_conv2d(x, self.weight, similarity, padding=(1, 1))


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
    layer = Layer(EXPORTED, full=False)
    fast = torch.compile(layer, fullgraph=True)
    x = torch.randn(2, 4, 9, 12, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = layer(x), fast(x)
    assert found.dtype == torch.bfloat16
    same(found, expected, 2e-2)
    (gradient,) = torch.autograd.grad(found.float().square().sum(), x)
    assert gradient.dtype == torch.float32


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_export(full: bool) -> None:
    layer = Layer(EXPORTED, full)
    dim = torch.export.Dim
    shapes = ({0: dim("n", min=2, max=64), 2: dim("h", min=8, max=64), 3: dim("w", min=8, max=64)},)
    program = torch.export.export(
        layer, (torch.randn(2, 4, 9, 12),), dynamic_shapes=shapes, strict=False
    )
    assert any(node.target is FORWARD for node in program.graph.nodes)
    for batch, size in ((2, (9, 12)), (5, (14, 11))):
        x = torch.randn(batch, 4, *size)
        same(program.module()(x), layer(x), 1e-5)


@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
def test_onnx(full: bool, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    layer = Layer(EXPORTED, full).eval()
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


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("full", [False, True], ids=["diagonal", "full"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
def test_traceable(name: str, full: bool, shared: bool) -> None:
    case = CASES[name]
    ours = operands(case, full, shared)
    x, weight, similarity = ours
    same(
        registered.traceable(x, weight, similarity, *settings(case)),
        reference.similarity_conv2d(*ours, *settings(case)),
        1e-12,
    )


MEMORY = """
import resource, sys, torch
from torch.nn import functional
from neural_similarity.ops.similarity_conv import panels, registered
kind, chosen = sys.argv[1:]
if chosen == "pure":
    registered._choose = lambda input: panels
last = torch.channels_last
x = torch.randn(64, 32, 64, 64).to(memory_format=last).requires_grad_()
w = torch.randn(32, 32, 3, 3, requires_grad=True)
m = torch.rand(64, 9, 64, 64, requires_grad=True)
def step(size):
    if kind == "plain":
        y = functional.conv2d(x[:size], w, padding=1)
    else:
        settings = ((1, 1), (1, 1), (1, 1), 1)
        y = registered.similarity_conv2d(x[:size], w, m[:size], *settings)
    y.backward(torch.ones_like(y))
    x.grad = w.grad = m.grad = None
step(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(64)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident size in kilobytes")
def test_memory(path: str) -> None:
    """A step takes no more than a plain one, the similarity's gradient and 16 MB."""
    root = str(Path(__file__).resolve().parent.parent)

    def peak(kind: str) -> float:
        command = [sys.executable, "-c", MEMORY, kind, path]
        result = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        return float(result.stdout)

    similarity = 64 * 9 * 64 * 64 * 4 / 2**20
    # Slices of x and m give each a gradient of the slice and one of the whole.
    assert peak("ours") <= peak("plain") + 2 * similarity + 16


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parent.parent)
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


LOAD = (
    "from neural_similarity.ops.similarity_conv import compiled\n"
    "print([compiled.load() is None for _ in range(2)])"
)


def test_turned_off() -> None:
    result = _run(LOAD, NEURAL_SIMILARITY_COMPILED="0")
    assert result.stdout.strip() == "[True, True]"
    assert "neural_similarity" not in result.stderr


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_failing_compiler_warns_once(compiler: str, tmp_path: Path) -> None:
    result = _run(LOAD, CXX=compiler, NEURAL_SIMILARITY_CACHE=str(tmp_path))
    assert result.stdout.strip() == "[True, True]"
    assert result.stderr.count("RuntimeWarning") == 1
    assert list(tmp_path.iterdir()) == []


def test_built_once_by_several_processes(tmp_path: Path) -> None:
    if compiled.load() is None:
        pytest.skip("no compiler")
    environment = {**os.environ, "NEURAL_SIMILARITY_CACHE": str(tmp_path)}
    root = str(Path(__file__).resolve().parent.parent)
    command = [sys.executable, "-c", LOAD]
    processes = [
        subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in processes:
        output, _ = process.communicate()
        assert output.decode().strip() == "[False, False]"
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".sha256", ".so"]
    assert "building" not in _run(LOAD, NEURAL_SIMILARITY_CACHE=str(tmp_path)).stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map")
def test_one_openmp_runtime() -> None:
    if compiled.load() is None:
        pytest.skip("no compiler")
    code = (
        "import torch\n"
        "from neural_similarity.ops.similarity_conv import compiled\n"
        "compiled.load()\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "print(len({m for m in maps if 'libgomp' in m or 'libomp' in m or 'libiomp' in m}))"
    )
    assert _run(code).stdout.strip() == "1"


def test_the_dispatcher_takes_the_compiled_path_where_it_can() -> None:
    if (kernels := compiled.load()) is None:
        pytest.skip("no compiler")
    assert registered._choose(torch.zeros(1)) is kernels
    assert registered._choose(torch.zeros(1, dtype=torch.float64)) is kernels
    assert registered._choose(torch.zeros(1, dtype=torch.bfloat16)) is panels
    assert registered._choose(torch.zeros(1, device="meta")) is panels


def test_a_damaged_library_is_built_again(tmp_path: Path) -> None:
    if compiled.load() is None:
        pytest.skip("no compiler")
    whole = compiled._library()
    for file in (whole, whole.with_suffix(".sha256")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    copy = tmp_path / whole.name
    copy.write_bytes(copy.read_bytes()[:-1000])
    assert not compiled._is_whole(copy)
    assert compiled._is_whole(whole)


@torch_warns_about_itself
def test_functional_transforms_and_forward_mode() -> None:
    case = CASES["strided"]
    x, weight, similarity = operands(case)

    def f(w: Tensor) -> Tensor:
        return registered.similarity_conv2d(x, w, similarity, *settings(case))

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


def test_backward_inside_autocast_is_not_rounded(path: str) -> None:
    case = CASES["wide"]
    ours = [t.requires_grad_() for t in operands(case, dtype=torch.float32)]
    y = registered.similarity_conv2d(*ours, *settings(case))
    expected = torch.autograd.grad(y.sum(), ours, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(y.sum(), ours)
    for one, other in zip(found, expected, strict=True):
        same(one, other, 1e-6)


def test_a_gradient_of_another_size_is_refused(path: str) -> None:
    case = CASES["rgb"]
    x, weight, similarity = operands(case)
    with pytest.raises(ValueError, match=r"the gradient \(1, 5, 2, 2\) does not fit the output"):
        BACKWARD(
            torch.randn(1, 5, 2, 2).double(), x, weight, similarity, *settings(case), [True] * 3
        )
    with pytest.raises(ValueError, match="one real dtype"):
        FORWARD(x + 0j, weight + 0j, similarity + 0j, *settings(case))

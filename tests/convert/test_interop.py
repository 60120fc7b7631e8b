"""Attached and merged networks in the rest of PyTorch: compile, DDP, autocast, export, ONNX."""

import pytest
import torch
from support.cases import disturb
from support.networks import PlainCNN

import neural_similarity as ns

SHAPE = (2, 3, 12, 10)


def attached(structure="unconstrained"):
    model = ns.attach(PlainCNN(), ns.StaticSimilarity(structure))
    disturb(model)
    return model.eval()


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained", "kernel_shape"])
def test_torch_compile_with_gradients(structure):
    model, input = attached(structure), torch.randn(SHAPE)
    expected = model(input)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in ns.similarity_parameters(model)]
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    result = compiled(input)
    torch.testing.assert_close(result, expected)
    result.square().sum().backward()
    for ours, truth in zip(ns.similarity_parameters(model), gradients, strict=True):
        torch.testing.assert_close(ours.grad, truth, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_with_the_default_backend():
    model, input = attached("diagonal"), torch.randn(SHAPE)
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(input), model(input), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
def test_autocast_does_not_round_the_merged_kernel(structure):
    model, input = attached(structure), torch.randn(SHAPE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.features[0].weight.dtype == torch.float32
        before = model(input)
        ns.merge(model)
        assert torch.equal(model(input), before)


def test_double_precision_and_moves_after_attaching():
    model = attached().double()
    assert all(p.dtype == torch.float64 for p in model.parameters())
    input = torch.randn(SHAPE, dtype=torch.float64)
    before = model(input)
    torch.testing.assert_close(ns.merge(model)(input), before, rtol=1e-12, atol=1e-12)


def test_torch_export_after_merging():
    model, input = ns.merge(attached()), torch.randn(SHAPE)
    program = torch.export.export(model, (input,))
    torch.testing.assert_close(program.module()(input), model(input))


@pytest.mark.filterwarnings("ignore")  # the exporter warns about itself
def test_onnx_after_merging(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = attached()
    before = {n: model(torch.ones(n, *SHAPE[1:])) for n in (1, 5)}
    ns.merge(model)
    path = tmp_path / "model.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        model, (torch.randn(SHAPE),), path, dynamo=True, verbose=False, input_names=["image"],
        dynamic_shapes=({0: batch},),
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for n, expected in before.items():
        (result,) = session.run(None, {"image": torch.ones(n, *SHAPE[1:]).numpy()})
        torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-4, atol=1e-5)


RANK = """
import torch, torch.distributed as dist, neural_similarity as ns
from torch import nn

dist.init_process_group("gloo")
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
ns.attach(model, ns.StaticSimilarity("unconstrained"))
input = torch.randn(4, 3, 8, 8)
model(input).square().mean().backward()
alone = [p.grad.clone() for p in model.parameters()]
model.zero_grad()
parallel = nn.parallel.DistributedDataParallel(model)
mine = input.chunk(2)[dist.get_rank()]
parallel(mine).square().mean().backward()
for parameter, expected in zip(model.parameters(), alone, strict=True):
    torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6)
ns.attach(model, ns.StaticSimilarity("unconstrained"), name="birds")
ns.freeze_backbone(model, also_train=[])  # the other one gets no gradient
model.zero_grad()
parallel = nn.parallel.DistributedDataParallel(model)
for _ in range(2):
    parallel(mine).square().mean().backward()
assert all(p.grad is not None for p in ns.similarity_parameters(model))
try:
    ns.attach(parallel, ns.StaticSimilarity("diagonal"), name="late")
    raise AssertionError("a similarity whose gradients would not be averaged")
except ns.AttachError as error:
    assert "expected a model before DistributedDataParallel, got one after it" in str(error)
ns.save_similarity(parallel, f"{dist.get_rank()}.safetensors")
ns.load_similarity(parallel, f"{dist.get_rank()}.safetensors", name="birds")  # it has these
ns.merge(parallel)
assert type(model[0]) is nn.Conv2d
del parallel  # or it ends the group, waiting for a thread that waits for Python
dist.destroy_process_group()
"""


def test_distributed_data_parallel(tmp_path, forks):
    """Two ranks, half the batch each, give the gradients of one process with all of it."""
    done = forks.call("support.worlds:pair", "support.forks:run_here", RANK, cwd=tmp_path)
    assert done.code == 0, done.err


SHARDED = """
import copy, torch, torch.distributed as dist, neural_similarity as ns
from torch import nn
from torch.distributed.fsdp import fully_shard

def shard(model):
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    return model

dist.init_process_group("gloo")
torch.set_num_threads(1)
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
file = f"{dist.get_rank()}.safetensors"
input = torch.randn(4, 3, 8, 8)
dist.broadcast(input, 0)
for config in (
    ns.StaticSimilarity("diagonal"),
    ns.StaticSimilarity("psd"),
    ns.DynamicSimilarity("diagonal", ns.ImagePredictor(hidden=2), over="both"),
):
    torch.manual_seed(0)
    stock = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    plain_stock = copy.deepcopy(stock)
    plain = ns.attach(copy.deepcopy(stock), config)
    with torch.no_grad():
        for parameter in ns.similarity_parameters(plain):
            parameter.add_(0.1 * torch.randn_like(parameter))
    static = isinstance(config, ns.StaticSimilarity)
    sharded = ns.attach(stock, config)
    sharded.load_state_dict(plain.state_dict())
    shard(sharded)
    expected = plain(input)
    torch.testing.assert_close(sharded(input), expected)
    loss = sharded(input).square().mean()
    wanted = plain(input).square().mean()
    if static:
        loss = loss + ns.similarity_penalty(sharded, l2=0.1)
        wanted = wanted + ns.similarity_penalty(plain, l2=0.1)
    loss.backward()
    wanted.backward()
    for ours, theirs in zip(sharded.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad, rtol=1e-4, atol=1e-6)

    ns.save_similarity(sharded, file)
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3))
    ns.load_similarity(other, file)
    for ours, theirs in zip(
        ns.similarity_parameters(other), ns.similarity_parameters(plain), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        for parameter in ns.similarity_parameters(sharded):
            parameter.zero_()
    ns.load_similarity(sharded, file)
    torch.testing.assert_close(sharded(input), expected)
    # By default the root's own parameters stay whole after a forward pass without gradients.
    root = ns.attach(copy.deepcopy(plain_stock), config)
    fully_shard(root, mesh=mesh)
    with torch.no_grad():
        root(input)
    ns.load_similarity(root, file)
    root.reshard()
    torch.testing.assert_close(root(input), expected)
    for call, message in (
        (lambda: ns.attach(sharded, config, name="late"), "before fully_shard, got one with"),
        (lambda: ns.attach(root, config, name="late"), "before fully_shard, got one with"),
        (lambda: ns.load_similarity(sharded, file, name="late"), "before fully_shard, got one"),
        (lambda: ns.merge(sharded), "fully_shard has divided among" if static else "only dynamic"),
        (lambda: ns.detach(sharded), "fully_shard has divided among"),
    ):
        try:
            call()
        except (ns.AttachError, ns.MergeError) as error:
            assert message in str(error), error
        else:
            raise AssertionError(message)
dist.destroy_process_group()
"""


def test_fully_sharded(tmp_path, forks):
    """Parameters that two ranks share: the same output, gradients and files as unsharded ones."""
    done = forks.call("support.worlds:pair", "support.forks:run_here", SHARDED, cwd=tmp_path)
    assert done.code == 0, done.err


DYNAMIC = {
    "diagonal": ns.DynamicSimilarity("diagonal", ns.SpherePredictor(hidden=4)),
    "unconstrained": ns.DynamicSimilarity("unconstrained", ns.SpherePredictor(hidden=4)),
    "psd": ns.DynamicSimilarity("psd", ns.ConvPredictor(hidden=4)),
    "shared": ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=4), shared=True),
}
SIZES = ((2, (12, 10)), (5, (17, 14)))


def dynamic(name):
    model = ns.attach(PlainCNN(), DYNAMIC[name])
    disturb(model)
    return model.eval()


def any_size():
    dim = torch.export.Dim
    return (
        {0: dim("batch", max=64), 2: dim("height", min=8, max=64), 3: dim("width", min=8, max=64)},
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
@pytest.mark.parametrize(
    "name", [pytest.param("diagonal", marks=pytest.mark.slow), "unconstrained"]
)
def test_a_dynamic_network_compiles_with_gradients(name):
    torch.compiler.reset()
    model, input = dynamic(name), torch.randn(SHAPE)
    expected = model(input)
    expected.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    result = torch.compile(model, fullgraph=True)(input)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    result.square().sum().backward()
    for ours, truth in zip(model.parameters(), gradients, strict=True):
        scale = truth.abs().max().item()
        torch.testing.assert_close(ours.grad, truth, rtol=1e-3, atol=1e-4 * scale + 1e-6)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("psd", "shared") else pytest.mark.slow)
        for name in DYNAMIC
    ],
)
def test_a_dynamic_network_exports(name):
    model = dynamic(name)
    program = torch.export.export(model, (torch.randn(SHAPE),), dynamic_shapes=any_size())
    for batch, size in SIZES:
        input = torch.randn(batch, 3, *size)
        torch.testing.assert_close(program.module()(input), model(input), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore")  # the exporter warns about itself
@pytest.mark.slow  # test_operator has the operation, and the commands a whole network
@pytest.mark.parametrize("name", ["diagonal", "unconstrained", "psd", "shared"])
def test_a_dynamic_network_in_onnxruntime(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, path = dynamic(name), tmp_path / "dynamic.onnx"
    torch.onnx.export(
        model, (torch.randn(SHAPE),), path, dynamo=True, verbose=False, input_names=["image"],
        dynamic_shapes=any_size(),
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch, size in SIZES:
        input = torch.randn(batch, 3, *size)
        (result,) = session.run(None, {"image": input.numpy()})
        expected = model(input).detach()
        torch.testing.assert_close(torch.from_numpy(result), expected, rtol=1e-4, atol=1e-4)


def test_a_dynamic_network_under_autocast():
    model, input = dynamic("diagonal"), torch.randn(SHAPE)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = model(input)
    assert result.dtype == torch.bfloat16
    expected = model(input)
    assert ((result - expected).abs().max() / expected.abs().max()).item() < 0.1

"""Global similarity: the definition, the fast paths, the layers, and what it contains."""

import copy
import subprocess
import sys
import warnings
from pathlib import Path

import oracle
import pytest
import torch
import torch.nn.functional as F
from cases import Geometry, relative_difference
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import neural_similarity as ns
from neural_similarity.models.spherenet import CONFIGURATIONS, SphereNet
from neural_similarity.nn import GlobalSimilarityConv2d, SelfAttention2d
from neural_similarity.ops import global_similarity_conv2d, mix_positions, position_attention
from neural_similarity.ops.global_similarity import attention, reference

DOUBLE = {"dtype": torch.float64}
ROOT = Path(__file__).resolve().parent.parent

# Size-preserving, on maps of H ≠ W; padding is what the operation works out for itself.
GEOMETRIES = {
    "plain": Geometry(2, 3, 4, (5, 2), (3, 1)),
    "wide": Geometry(2, 3, 5, (3, 4), (1, 5)),
    "dilated": Geometry(2, 2, 3, (5, 4), (3, 5), dilation=(2, 1)),
    "grouped": Geometry(3, 4, 6, (4, 5), (3, 3), groups=2),
    "reaches out of the map": Geometry(2, 3, 4, (2, 3), (7, 5), dilation=(1, 2)),
}
FORMS = ("mask", "matrix", "mask per sample", "matrix per sample", "matrix for all samples")


def similarity(form, geometry):
    """Random, asymmetric, not the identity."""
    H, W = geometry.image
    L, N = H * W, geometry.batch
    shapes = {
        "mask": (H, W),
        "matrix": (L, L),
        "mask per sample": (N, H, W),
        "matrix per sample": (N, L, L),
        "matrix for all samples": (1, L, L),
    }
    return torch.randn(shapes[form], **DOUBLE)


def leaves(geometry, form):
    tensors = {
        "input": geometry.input(**DOUBLE),
        "weight": geometry.weight(**DOUBLE),
        "similarity": similarity(form, geometry),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def assert_same_gradients(ours, truth, tensors):
    """To be differentiated again, or not: the two may be computed differently."""
    direction = torch.randn_like(truth)
    wanted = torch.autograd.grad(truth, tensors.values(), direction)
    for again in (True, False):
        got = torch.autograd.grad(
            ours, tensors.values(), direction, create_graph=again, retain_graph=True
        )
        for which, a, b in zip(tensors, got, wanted, strict=True):
            torch.testing.assert_close(
                a, b, rtol=1e-11, atol=1e-11, msg=lambda m, w=which: f"{w}: {m}"
            )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_reference_equals_the_definition(name, form):
    geometry = GEOMETRIES[name]
    input, weight, M = (t.detach() for t in leaves(geometry, form).values())
    options = {"dilation": geometry.dilation, "groups": geometry.groups}

    def matrix(n):
        block = M[0 if len(M) == 1 else n] if M.dim() == 3 else M
        return torch.diag(block.flatten()) if form.startswith("mask") else block

    ours = reference.global_similarity_conv2d(input, weight, M, **options)
    truth = oracle.global_similarity_conv2d(input, weight, matrix, **options)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_fast_path_equals_the_reference_with_each_gradient(name, form):
    geometry = GEOMETRIES[name]
    tensors = leaves(geometry, form)
    options = {"dilation": geometry.dilation, "groups": geometry.groups}
    ours = global_similarity_conv2d(**tensors, **options)
    truth = reference.global_similarity_conv2d(**tensors, **options)
    assert ours.shape == (geometry.batch, geometry.kernels, *geometry.image)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)
    assert_same_gradients(ours, truth, tensors)


def test_the_toeplitz_matrix_is_the_convolution():
    geometry = GEOMETRIES["grouped"]
    input, weight = geometry.input(**DOUBLE), geometry.weight(**DOUBLE)
    W_G = reference.toeplitz(weight, geometry.image, (1, 1), geometry.groups)
    plain = F.conv2d(input, weight, padding=1, groups=geometry.groups)
    torch.testing.assert_close(input.flatten(1) @ W_G, plain.flatten(1))


@pytest.mark.parametrize("form", FORMS[:4])
def test_derivatives(form):
    geometry = GEOMETRIES["reaches out of the map"]
    tensors = tuple(leaves(geometry, form).values())

    def f(input, weight, similarity):
        return global_similarity_conv2d(input, weight, similarity, dilation=geometry.dilation)

    assert gradcheck(f, tensors)
    assert gradgradcheck(f, tensors)


def attention_leaves(width=2, channels=5, size=(3, 4)):
    shapes = {"query": width, "key": width, "value": channels}
    return {n: torch.randn(2, c, *size, **DOUBLE).requires_grad_() for n, c in shapes.items()}


@pytest.fixture(params=["product", "softmax", "softmax, fused"])
def softmax(request, monkeypatch):
    """Every way to attend; whether it takes a softmax."""
    monkeypatch.setattr(attention, "_SMALL", 0 if "fused" in request.param else 100)
    return "softmax" in request.param


@pytest.mark.parametrize(("width", "channels"), [(2, 5), (5, 2), (3, 3)])
def test_attention_equals_its_explicit_matrix_with_each_gradient(softmax, width, channels):
    tensors = attention_leaves(width, channels)
    ours = position_attention(**tensors, softmax=softmax)
    M = reference.attention_matrix(tensors["query"], tensors["key"], softmax)
    truth = mix_positions(tensors["value"], M)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)
    assert_same_gradients(ours, truth, tensors)


def test_derivatives_of_attention(softmax):
    tensors = tuple(attention_leaves().values())

    def f(*maps):
        return position_attention(*maps, softmax=softmax)

    assert gradcheck(f, tensors)
    assert gradgradcheck(f, tensors)


def test_attention_in_functional_transforms(softmax):
    query, key, value = attention_leaves().values()

    def loss(query):
        attended = position_attention(query, key.detach(), value.detach(), softmax=softmax)
        return attended.square().sum()

    (truth,) = torch.autograd.grad(loss(query), query)
    torch.testing.assert_close(torch.func.grad(loss)(query.detach()), truth)


def test_attention_is_as_exact_as_plain_pytorch(softmax):
    tensors = {name: t.detach() for name, t in attention_leaves(8, 16, (9, 7)).items()}

    def plainly(query, key, value):
        return mix_positions(value, reference.attention_matrix(query, key, softmax))

    single = {name: t.float() for name, t in tensors.items()}
    truth = plainly(**{name: t.double() for name, t in single.items()})
    ours = relative_difference(position_attention(**single, softmax=softmax).double(), truth)
    assert ours <= 2 * relative_difference(plainly(**single).double(), truth)


def test_small_and_large_maps_are_attended_differently(monkeypatch):
    monkeypatch.setattr(attention, "_fused", lambda query, key, value: value * 0)
    small, large = attention_leaves(2, 5, (5, 4)), attention_leaves(2, 5, (3, 7))
    assert position_attention(**small).abs().max() > 0
    assert position_attention(**large).abs().max() == 0


# What the appendix says is contained in it.


def test_a_diagonal_is_a_mask_before_a_plain_convolution():
    geometry = GEOMETRIES["dilated"]
    input, weight, mask = geometry.input(), geometry.weight(), torch.randn(geometry.image)
    truth = F.conv2d(input * mask, weight, padding=(2, 2), dilation=geometry.dilation)
    ours = global_similarity_conv2d(input, weight, mask, dilation=geometry.dilation)
    assert torch.equal(ours, truth)


def test_global_and_local_similarity_agree_on_a_single_position():
    input, weight = torch.randn(3, 4, 1, 1, **DOUBLE), torch.randn(5, 4, 1, 1, **DOUBLE)
    M = torch.randn(3, 1, 1, **DOUBLE)
    ours = global_similarity_conv2d(input, weight, M)
    local = ns.ops.similarity_conv2d(input, weight, M[:, None])
    torch.testing.assert_close(ours, local)
    # A larger kernel sees padding around the one position: only its middle tap has a say.
    weight, taps = torch.randn(5, 4, 3, 3, **DOUBLE), torch.randn(3, 9, 1, 1, **DOUBLE)
    taps[:, 4] = M
    ours = global_similarity_conv2d(input, weight, M)
    local = ns.ops.similarity_conv2d(input, weight, taps, padding=1)
    torch.testing.assert_close(ours, local)


def test_global_and_local_similarity_differ_otherwise():
    input, weight, mask = torch.randn(1, 2, 3, 3), torch.randn(4, 2, 3, 3), torch.randn(3, 3)
    ours = global_similarity_conv2d(input, weight, mask)
    local = ns.ops.similarity_conv2d(input, weight, mask.flatten(), padding=1)
    assert relative_difference(ours, local) > 0.1


def test_dynamic_similarity_g1_g2_is_self_attention():
    layer = GlobalSimilarityConv2d(4, 6, 3, structure="plain_attention", **DOUBLE)
    input = torch.randn(2, 4, 3, 5, **DOUBLE)
    columns = input.flatten(2).mT  # the appendix's Resize(X_F, mm, c)
    G1 = columns @ layer.similarity.query.weight[:, :, 0, 0].T
    G2 = columns @ layer.similarity.key.weight[:, :, 0, 0].T
    attended = (G1 @ G2.mT @ columns).mT.reshape(input.shape)
    truth = F.conv2d(attended, layer.weight, layer.bias, padding=1)
    torch.testing.assert_close(layer(input), truth)
    M = layer.similarity.similarity(input)
    as_operation = global_similarity_conv2d(input, layer.weight, M, layer.bias)
    torch.testing.assert_close(as_operation, truth)


def test_self_attention_equals_an_explicit_softmax():
    layer = GlobalSimilarityConv2d(16, 6, 3, structure="attention", **DOUBLE)
    inner = layer.similarity
    nn.init.constant_(inner.gain, 0.7)
    input = torch.randn(2, 16, 3, 5, **DOUBLE)
    q, k, v = (
        torch.einsum("oc,ncl->nol", m.weight[:, :, 0, 0], input.flatten(2))
        for m in (inner.query, inner.key, inner.value)
    )
    assert q.shape[1] == 2  # C/8
    scores = torch.einsum("ndi,ndj->nij", q, k)
    A = scores.exp() / scores.exp().sum(-1, keepdim=True)
    attended = input + 0.7 * torch.einsum("nij,ncj->nci", A, v).reshape(input.shape)
    truth = F.conv2d(attended, layer.weight, layer.bias, padding=1)
    torch.testing.assert_close(layer(input), truth)
    torch.testing.assert_close(inner.similarity(input), A)
    # M_G = I + γ V ⊗ A, as one matrix over channels and positions
    V = inner.value.weight[:, :, 0, 0]
    M_G = torch.eye(16 * 15, **DOUBLE) + 0.7 * torch.stack([torch.kron(V, a) for a in A])
    torch.testing.assert_close((M_G @ input.flatten(1)[..., None]).reshape(input.shape), attended)


def sampling_matrix(grid, size):
    """What a bilinear sampler with zeros outside does, as an L × L matrix: loops and weights."""
    H, W = size
    M = torch.zeros(len(grid), H * W, H * W, **DOUBLE)
    for n in range(len(grid)):
        for i, (x, y) in enumerate(grid[n].reshape(-1, 2).tolist()):
            column, row = ((x + 1) * W - 1) / 2, ((y + 1) * H - 1) / 2
            for r in range(H):
                for c in range(W):
                    near = max(0.0, 1 - abs(row - r)) * max(0.0, 1 - abs(column - c))
                    M[n, i, r * W + c] = near
    return M


def test_a_spatial_transformer_is_a_global_similarity():
    input, weight = torch.randn(2, 3, 6, 5, **DOUBLE), torch.randn(4, 3, 3, 3, **DOUBLE)
    turn = torch.tensor([[[0.8, -0.5, 0.1], [0.4, 0.9, -0.2]]], **DOUBLE)
    zoom = torch.tensor([[[1.3, 0.0, 0.3], [0.0, 0.6, 0.1]]], **DOUBLE)
    grid = F.affine_grid(torch.cat([turn, zoom]), [2, 3, 6, 5], align_corners=False)
    sampled = F.grid_sample(input, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    M = sampling_matrix(grid, (6, 5))
    torch.testing.assert_close(mix_positions(input, M), sampled)
    ours = global_similarity_conv2d(input, weight, M)
    torch.testing.assert_close(ours, F.conv2d(sampled, weight, padding=1))


# The layer.

LAYERS = {
    "mask": {"structure": "diagonal", "size": (5, 7)},
    "matrix": {"structure": "unconstrained", "size": (5, 7)},
    "rotation": {"structure": ns.structures.Orthogonal(), "size": (5, 7)},
    "predicted mask": {"structure": "diagonal", "predictor": ns.SpherePredictor(hidden=4)},
    "plain CNN": {"structure": "diagonal", "predictor": ns.ConvPredictor(hidden=4)},
    "attention": {"structure": "attention"},
    "plain attention": {"structure": "plain_attention"},
}
IDENTITY = [name for name in LAYERS if name != "plain attention"]


def layer(name, disturbed=True, **kwargs):
    conv = GlobalSimilarityConv2d(8, 6, (3, 5), **LAYERS[name], **kwargs)
    if disturbed:
        with torch.no_grad():
            for parameter in conv.similarity.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
    return conv


@pytest.mark.parametrize("name", IDENTITY)
def test_layers_start_as_the_plain_convolution_and_leave_it(name):
    plain = nn.Conv2d(8, 6, (3, 5), padding=(1, 2))
    ours, input = layer(name, disturbed=False), torch.randn(2, 8, 5, 7)
    ours.load_state_dict(plain.state_dict())
    torch.testing.assert_close(ours(input), plain(input))
    torch.testing.assert_close(ours(input[0]), plain(input[0]))
    moved = layer(name)
    moved.load_state_dict(plain.state_dict())
    assert relative_difference(moved(input), plain(input)) > 1e-3
    for parameter in moved.similarity.parameters():
        parameter.grad = None
    moved(input).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in moved.parameters())


def test_plain_attention_cannot_start_there():
    plain, input = nn.Conv2d(8, 6, (3, 5), padding=(1, 2)), torch.randn(2, 8, 5, 7)
    ours = layer("plain attention")
    ours.load_state_dict(plain.state_dict())
    # Quadratic in the input, by definition: M_G X grows with its cube.
    ours.bias = None
    torch.testing.assert_close(ours(2 * input), 8 * ours(input))


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "attention"])
def test_layers_equal_the_reference(name):
    """Attention with its value and gain is held against an explicit computation above."""
    conv, input = layer(name, **DOUBLE).eval(), torch.randn(2, 8, 5, 7, **DOUBLE)
    M = conv.similarity.similarity(input)
    truth = reference.global_similarity_conv2d(input, conv.weight, M, (1, 1), 1)
    torch.testing.assert_close(conv(input), truth + conv.bias[:, None, None])


def test_every_structure_has_a_global_form():
    input = torch.randn(2, 3, 3, 5)
    for name in ns.structures.list_structures():
        conv = GlobalSimilarityConv2d(3, 4, 3, structure=name, size=(3, 5))
        M = conv.similarity.similarity(input)
        torch.testing.assert_close(
            conv(input), global_similarity_conv2d(input, conv.weight, M, conv.bias)
        )


def test_padding_modes_and_groups():
    plain = nn.Conv2d(8, 4, 3, padding=1, padding_mode="circular", groups=2, bias=False)
    ours = GlobalSimilarityConv2d(
        8, 4, 3, padding_mode="circular", groups=2, bias=False, structure="diagonal", size=(5, 7)
    )
    ours.load_state_dict(plain.state_dict())
    input, mask = torch.randn(2, 8, 5, 7), torch.rand(5, 7)
    with torch.no_grad():
        ours.similarity.numbers["diagonal"].copy_(mask.flatten())
    torch.testing.assert_close(ours(input), plain(input * mask))


def test_a_mask_is_resized_and_says_so_once():
    conv, mask = layer("mask"), torch.rand(5, 7)
    with torch.no_grad():
        conv.similarity.numbers["diagonal"].copy_(mask.flatten())
    input = torch.randn(2, 8, 9, 4)
    with pytest.warns(ns.ResizedMaskWarning, match=r"map of \(5, 7\), got \(9, 4\).*bilinearly"):
        ours = conv(input)
    resized = F.interpolate(mask[None, None], (9, 4), mode="bilinear")
    truth = F.conv2d(input * resized, conv.weight, conv.bias, padding=(1, 2))
    torch.testing.assert_close(ours, truth)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conv(input)
        conv(torch.randn(2, 8, 3, 3))
        conv(torch.randn(2, 8, 5, 7))


def test_similarities_count_are_trained_alone_and_survive_a_round_trip():
    model = nn.Sequential(layer("attention"), nn.Flatten(), nn.Linear(6, 2))
    numbers = {id(p) for p in ns.similarity_parameters(model)}
    assert numbers == {id(p) for p in model[0].similarity.parameters()}
    ns.freeze_backbone(model, also_train=[])
    assert not model[0].weight.requires_grad
    assert model[0].similarity.gain.requires_grad
    summary = ns.trainable_summary(model)
    assert summary.deployed == summary.total  # nothing of it merges
    copied = copy.deepcopy(model[0])
    nn.init.zeros_(copied.similarity.gain)
    copied.load_state_dict(model[0].state_dict())
    assert torch.equal(copied.similarity.gain, model[0].similarity.gain)
    with pytest.raises(ns.AttachError, match=r"global similarity '0.similarity'.*state_dict"):
        ns.save_similarity(model, "never-written.safetensors")


# The rest of PyTorch.


@pytest.mark.parametrize("name", LAYERS)
def test_compile_with_gradients(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    expected = conv(input)
    expected.square().mean().backward()
    gradients = {n: p.grad.clone() for n, p in conv.named_parameters()}
    conv.zero_grad()
    result = torch.compile(conv, fullgraph=True, backend="aot_eager")(input)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    result.square().mean().backward()
    for which, parameter in conv.named_parameters():
        torch.testing.assert_close(
            parameter.grad, gradients[which], rtol=1e-3, atol=1e-3,
            msg=lambda m, w=which: f"{w}: {m}",
        )  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
def test_export(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    program = torch.export.export(conv, (input,))
    torch.testing.assert_close(program.module()(input), conv(input), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["predicted mask", "attention", "plain attention"])
def test_export_for_maps_of_any_size(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    sizes = {0: torch.export.Dim("N"), 2: torch.export.Dim("H"), 3: torch.export.Dim("W")}
    program = torch.export.export(conv, (input,), dynamic_shapes=(sizes,))
    for shape in ((3, 8, 4, 6), (2, 8, 9, 5)):
        other = torch.randn(shape)
        torch.testing.assert_close(program.module()(other), conv(other), rtol=1e-4, atol=1e-4)


def test_a_resized_mask_compiles_without_a_word():
    conv, input = layer("mask").eval(), torch.randn(2, 8, 6, 4)
    result = torch.compile(conv, fullgraph=True, backend="aot_eager")(input)
    with pytest.warns(ns.ResizedMaskWarning):
        torch.testing.assert_close(result, conv(input))


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_and_half_precision(name):
    conv, input = layer(name).eval(), torch.randn(2, 8, 5, 7)
    truth = conv(input)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = conv(input)
    assert relative_difference(rounded.float(), truth) < 0.05
    rounded.float().square().sum().backward()
    assert all(p.grad.isfinite().all() for p in conv.parameters())
    if name != "rotation":  # PyTorch has no matrix exponential in half precision
        half = copy.deepcopy(conv).bfloat16()
        assert relative_difference(half(input.bfloat16()).float(), truth) < 0.05


MEMORY = """
import resource, sys, torch
from neural_similarity.ops import position_attention
def step(side):
    query, key = torch.randn(2, 1, 2, side, side).requires_grad_()
    value = torch.randn(1, 16, side, side, requires_grad=True)
    position_attention(query, key, value, softmax=sys.argv[1] == "softmax").sum().backward()
step(8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
step(96)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident size in kilobytes")
@pytest.mark.parametrize("kind", ["softmax", "product"])
def test_memory_of_attention_does_not_grow_with_the_square_of_positions(kind):
    """At 96 × 96 one matrix M would take 324 MB; a map takes 0.6."""
    command = [sys.executable, "-c", MEMORY, kind]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert float(result.stdout) < 48


# The networks.


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_four_rows_of_table_7(name):
    row = CONFIGURATIONS[name]
    model = ns.create_model(name, num_classes=10)
    assert sum(p.numel() for p in model.parameters()) == row.parameters
    kinds = [type(m) for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert set(kinds) == {row.conv_layer}
    attending = [m for m in model.modules() if isinstance(m, SelfAttention2d)]
    assert len(attending) == len(row.attention)
    assert len(kinds) == 9 + 1 + 3 * len(attending)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_networks_train(name):
    model = ns.create_model(name, 4, image_size=16, widths=(8, 12, 16), hidden=16)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(images), labels) + ns.filter_orthogonality_penalty(model)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad is not None for p in model.parameters())
    gains = [m.gain for m in model.modules() if isinstance(m, SelfAttention2d)]
    assert all(gain != 0 for gain in gains)


def test_attention_starts_as_the_network_without():
    small = {"image_size": 8, "widths": (8, 12, 16), "hidden": 8}
    without = ns.create_model("spherenet9", **small).eval()
    attending = ns.create_model("spherenet9_attention", **small).eval()
    missing = attending.load_state_dict(without.state_dict(), strict=False)
    assert not missing.unexpected_keys
    image = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(attending(image), without(image))


def test_the_orthogonality_penalty_by_hand():
    conv = nn.Conv2d(2, 3, 1, bias=False)
    grouped = nn.Conv2d(4, 4, 1, groups=2, bias=False)
    W, V = conv.weight.detach().flatten(1), grouped.weight.detach().reshape(2, 2, 2)
    expected = 0.0
    for rows in (W, V[0], V[1]):
        for a in range(len(rows)):
            for b in range(len(rows)):
                expected += (float(rows[a] @ rows[b]) - (a == b)) ** 2 / 2
    penalty = ns.filter_orthogonality_penalty(nn.Sequential(conv, grouped), weight=0.1)
    torch.testing.assert_close(penalty.item(), 0.1 * expected, rtol=1e-5, atol=1e-7)
    penalty.backward()
    assert conv.weight.grad.abs().max() > 0


def test_the_orthogonality_penalty_leaves_predictors_alone():
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Linear(4, 2))
    before = ns.filter_orthogonality_penalty(model)
    ns.attach(model, ns.DynamicSimilarity())
    torch.testing.assert_close(ns.filter_orthogonality_penalty(model), before)


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((4, 4, 2), {}, r"odd sides, got \(2, 2\).*no middle"),
        ((4, 4, (3, 4)), {}, r"odd sides, got \(3, 4\)"),
        ((4, 4, 3, 2), {}, r"stride \(1, 1\), got \(2, 2\).*pooling"),
        ((4, 4, 3), {"padding": 0}, r"padding \(1, 1\), got \(0, 0\).*Leave padding out"),
        ((4, 4, 3), {"padding": "valid"}, "padding to be one of 'same', got 'valid'"),
        ((4, 4, 3), {"structure": "atention"}, "'atention'. Did you mean 'attention'"),
        ((4, 4, 3), {"structure": "diagonal"}, r"size=\(H, W\).*or a predictor"),
        ((4, 4, 3), {"structure": "psd"}, r"expected size=\(H, W\) for structure 'psd', got None"),
        ((4, 4, 3), {"structure": "diagonal", "size": (0, 3)}, r"at least \(1, 1\), got \(0, 3\)"),
        ((4, 4, 3), {"size": 8}, "no size for structure 'attention', got 8"),
        ((4, 4, 3), {"structure": "plain_attention", "width": 2}, "no width for structure"),
        ((4, 4, 3), {"width": 0}, "width of at least 1 for query and key, got 0"),
        (
            (4, 4, 3),
            {"structure": "unconstrained", "predictor": ns.SpherePredictor()},
            "predictor with structure 'diagonal' and no size, got structure 'unconstrained'",
        ),
        (
            (4, 4, 3),
            {"structure": "unconstrained", "size": (100, 80)},
            "at most 16,777,216 numbers, got up to 64,000,000.*square of the positions",
        ),
    ],
)
def test_settings_that_do_not_fit(arguments, options, message):
    with pytest.raises(ValueError, match=f"GlobalSimilarityConv2d: .*{message}"):
        GlobalSimilarityConv2d(*arguments, **options)


def test_inputs_that_do_not_fit():
    matrix = layer("matrix")
    with pytest.raises(ns.ShapeError, match=r"5 x 7 positions, got 6 x 7.*belongs to one size"):
        matrix(torch.zeros(1, 8, 6, 7))
    with pytest.raises(ns.ShapeError, match=r"shape \(N, 8, H, W\).*got \(1, 3, 5, 7\)"):
        matrix(torch.zeros(1, 3, 5, 7))
    input, weight = torch.zeros(2, 3, 4, 5), torch.zeros(2, 3, 3, 3)
    for M in (torch.zeros(5, 4), torch.zeros(20), torch.zeros(3, 4, 5), torch.zeros(20, 19)):
        with pytest.raises(ns.ShapeError, match=r"\(4, 5\), \(20, 20\), .*4 x 5 positions"):
            global_similarity_conv2d(input, weight, M)
    with pytest.raises(ns.ShapeError, match=r"odd sides, got \(2, 3\)"):
        global_similarity_conv2d(input, weight[:, :, 1:], torch.zeros(4, 5))
    with pytest.raises(ns.ShapeError, match="expected input with 3 channels, got 2"):
        global_similarity_conv2d(input[:, 1:], weight, torch.zeros(4, 5))
    with pytest.raises(ns.ShapeError, match=r"weight of shape \(O, C/G, kh, kw\), got \(3,\)"):
        global_similarity_conv2d(input, torch.zeros(3), torch.zeros(4, 5))
    with pytest.raises(ns.ShapeError, match=r"mix_positions: expected input of shape"):
        mix_positions(torch.zeros(4, 5), torch.zeros(4, 5))


def test_attention_maps_that_do_not_fit():
    query, value = torch.zeros(2, 3, 4, 5), torch.zeros(2, 6, 4, 5)
    with pytest.raises(ns.ShapeError, match=r"key of the query's shape \(2, 3, 4, 5\), got"):
        position_attention(query, query[:, 1:], value)
    with pytest.raises(ns.ShapeError, match=r"value of shape \(2, 'C', 4, 5\), got \(2, 6, 4, 4\)"):
        position_attention(query, query, value[..., 1:])
    with pytest.raises(ns.ShapeError, match=r"got \(3, 4, 5\) and \(2, 6, 4, 5\)"):
        position_attention(query[0], query[0], value)


def test_networks_that_do_not_fit():
    with pytest.raises(ns.UnknownNameError, match=r"'spherenet9', .*Did you mean 'spherenet9'"):
        ns.create_model("spherenet")
    with pytest.raises(ns.ShapeError, match="multiple of 8, got 30"):
        ns.create_model("spherenet9", image_size=30)
    with pytest.raises(ns.ShapeError, match="SelfAttention2d: expected a width of at least 1"):
        SelfAttention2d(8, width=0)
    with pytest.raises(ns.ShapeError, match=r"poolings 1, 2 and 3, got \(0,\)"):
        SphereNet(10, attention=(0,))
    model = SphereNet(10, image_size=8, widths=(4, 4, 4), hidden=4)
    with pytest.raises(ns.ShapeError, match=r"\('N', 3, 8, 8\), got \(1, 3, 16, 16\)"):
        model(torch.zeros(1, 3, 16, 16))
    with pytest.raises(ns.ShapeError, match="a model with a convolution, got one without"):
        ns.filter_orthogonality_penalty(nn.Linear(3, 3))

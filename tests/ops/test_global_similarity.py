"""Global similarity: the definition, the fast paths, the layers, and what it contains."""

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import oracle
from support.cases import Geometry, relative_difference
from support.family_definitions import sampling_matrix
from torch import nn
from torch.autograd import gradcheck, gradgradcheck

import neural_similarity as ns
from neural_similarity.nn import GlobalSimilarityConv2d
from neural_similarity.ops import global_similarity_conv2d, mix_positions, position_attention
from neural_similarity.ops.global_similarity import attention, reference

DOUBLE = {"dtype": torch.float64}
ROOT = Path(__file__).resolve().parents[2]

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


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_attention_sample_by_sample_and_forward(softmax):
    query, key, value = (leaf.detach() for leaf in attention_leaves().values())

    def loss(query, key, value):
        return position_attention(query, key, value, softmax=softmax).square().sum()

    truth = torch.func.grad(loss)(query, key, value)
    ours = torch.func.vmap(torch.func.grad(lambda *maps: loss(*(m[None] for m in maps))))
    torch.testing.assert_close(ours(query, key, value), truth)
    along = torch.randn_like(query)
    _, slope = torch.func.jvp(lambda query: loss(query, key, value), (query,), (along,))
    torch.testing.assert_close(slope, (truth * along).sum())


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


# The rest of PyTorch.


MEMORY = """
import sys, torch
from neural_similarity.ops import position_attention
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
def step(side):
    query, key = torch.randn(2, 1, 2, side, side).requires_grad_()
    value = torch.randn(1, 16, side, side, requires_grad=True)
    position_attention(query, key, value, softmax=sys.argv[1] == "softmax").sum().backward()
open("/proc/self/clear_refs", "w").write("5")  # not the peak of the process that forked
step(8)
before = peak()
step(96)
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident size in kilobytes")
@pytest.mark.parametrize("kind", ["softmax", "product"])
def test_memory_of_attention_does_not_grow_with_the_square_of_positions(kind, forks, tmp_path):
    """At 96 × 96 one matrix M would take 324 MB; a map takes 0.6."""
    ended = forks.run(MEMORY, kind, cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert float(ended.out) < 48


# The networks.


# Bad input.


def test_attention_maps_that_do_not_fit():
    query, value = torch.zeros(2, 3, 4, 5), torch.zeros(2, 6, 4, 5)
    with pytest.raises(ns.ShapeError, match=r"same shape as query, \(2, 3, 4, 5\), got"):
        position_attention(query, query[:, 1:], value)
    with pytest.raises(ns.ShapeError, match=r"value of shape \(2, C, 4, 5\), got \(2, 6, 4, 4\)"):
        position_attention(query, query, value[..., 1:])
    with pytest.raises(ns.ShapeError, match=r"got \(3, 4, 5\) and \(2, 6, 4, 5\)"):
        position_attention(query[0], query[0], value)

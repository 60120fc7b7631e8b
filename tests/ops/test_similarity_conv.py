"""The operation against the paper's definition, and its properties."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support import oracle
from support.cases import DYNAMIC, EVEN, GEOMETRIES, KINDS, Geometry, similarity
from torch.autograd import gradcheck, gradgradcheck

from neural_similarity import ShapeError, UnknownNameError
from neural_similarity.ops import effective_weight, similarity_conv2d
from neural_similarity.ops.similarity_conv import reference

ALL = {**GEOMETRIES, **EVEN}
DOUBLE = {"dtype": torch.float64}


def leaves(geometry, kind, batch=None):
    tensors = {
        "input": geometry.input(**DOUBLE),
        "weight": geometry.weight(**DOUBLE),
        "similarity": similarity(kind, geometry, batch, **DOUBLE),
    }
    return {name: tensor.requires_grad_() for name, tensor in tensors.items()}


def options(geometry, kind):
    return {**geometry.options, "similarity_groups": KINDS[kind].groups(geometry)}


def by_definition(tensors, geometry, kind):
    M, channels = tensors["similarity"], geometry.channels // geometry.groups
    sizes = (channels, geometry.kernels, geometry.groups)
    if M.dim() <= 2:
        matrix = oracle.scoped_matrix(M, "layer", *sizes)
    else:
        matrix = oracle.positional_matrix(M, *sizes, KINDS[kind].groups(geometry))
    return oracle.similarity_conv2d(tensors["input"], tensors["weight"], matrix, **geometry.options)


# The fast paths are held against the reference for every kind, in test_fast_paths.py.
DISPATCHED = ("matrix", "matrix per position", "diagonal per group and image")
EVERYWHERE = (
    "diagonal", "matrix", "diagonal per position", "matrix per position",
    "diagonal per group and position",
)  # fmt: skip


def cases():
    """A kind that repeats its entries is tried on half of the geometries; a call, on a third."""
    for g, name in enumerate(ALL):
        for k, kind in enumerate(KINDS):
            if kind in EVERYWHERE or (g + k) % 2:
                yield name, kind, "reference"
        yield name, DISPATCHED[g % 3], "dispatched"


@pytest.mark.parametrize(("name", "kind", "function"), list(cases()))
def test_equals_the_definition_with_each_gradient(name, kind, function):
    geometry = ALL[name]
    tensors = leaves(geometry, kind)
    call = reference.similarity_conv2d if function == "reference" else similarity_conv2d
    ours = call(**tensors, **options(geometry, kind))
    truth = by_definition(tensors, geometry, kind)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)
    direction = torch.randn_like(truth)
    for which, a, b in zip(
        tensors,
        torch.autograd.grad(ours, tensors.values(), direction),
        torch.autograd.grad(truth, tensors.values(), direction),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11, msg=lambda m, w=which: f"{w}: {m}")


@pytest.mark.parametrize("kind", DYNAMIC)
def test_a_batch_of_one_serves_every_sample(kind):
    geometry = GEOMETRIES["grouped"]
    tensors = leaves(geometry, kind, batch=1)
    ours = similarity_conv2d(**tensors, **options(geometry, kind))
    truth = by_definition(tensors, geometry, kind)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "kind",
    ["diagonal", "matrix", "diagonal per position", "matrix per image",
     "diagonal per group and image"],
)  # fmt: skip
def test_first_and_second_derivatives_by_finite_differences(kind):
    """All entries of the Jacobian; test_fast_paths.py has every kind, in random directions."""
    geometry = Geometry(2, 4, 2, (5, 4), (3, 2), (2, 1), (1, 0), (1, 2), groups=2)
    tensors = tuple(leaves(geometry, kind).values())

    def function(input, weight, M):
        return similarity_conv2d(input, weight, M, **options(geometry, kind))

    assert gradcheck(function, tensors, check_batched_grad=True)
    assert gradgradcheck(function, tensors)


@st.composite
def geometries(draw):
    groups = draw(st.integers(1, 3))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 3)))
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    image = [
        max(r - 2 * p, 1) + draw(st.integers(0, 5)) for r, p in zip(reach, padding, strict=True)
    ]
    return Geometry(
        draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 3)),
        groups * draw(st.integers(1, 3)),
        tuple(image),
        kernel,
        draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        padding,
        dilation,
        groups,
    )


@settings(deadline=None, max_examples=60)
@given(geometry=geometries(), name=st.sampled_from(sorted(KINDS)), seed=st.integers(0, 2**16))
def test_properties(geometry, name, seed):
    kind = KINDS[name]
    assume(not kind.grouped or geometry.channels > 1)
    torch.manual_seed(seed)
    input, weight = geometry.input(**DOUBLE), geometry.weight(**DOUBLE)
    M, other = (similarity(name, geometry, **DOUBLE) for _ in range(2))

    def f(weight, M):
        return similarity_conv2d(input, weight, M, **options(geometry, name))

    def same(a, b):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)

    taps = geometry.taps * kind.groups(geometry)
    identity = torch.eye(taps, **DOUBLE) if kind.matrix else torch.ones(taps, **DOUBLE)
    if kind.axes:
        identity = identity[(None, ..., None, None)].expand_as(M)
    same(f(weight, identity), F.conv2d(input, weight, **geometry.options))

    second = geometry.weight(**DOUBLE)
    same(f(2 * weight - second, M), 2 * f(weight, M) - f(second, M))
    same(f(weight, 3 * M + other), 3 * f(weight, M) + f(weight, other))
    if not kind.matrix and not kind.grouped:
        tap_axis = 1 if kind.axes else 0
        as_matrix = torch.diag_embed(M.movedim(tap_axis, -1), dim1=tap_axis, dim2=tap_axis + 1)
        same(f(weight, M), f(weight, as_matrix))
    if kind.axes:
        positions = M.expand(geometry.batch, *M.shape[1:-2], *geometry.positions)
        same(f(weight, M), f(weight, positions))


def test_the_transpose_is_the_right_way_round():
    """An asymmetric M on one tap: kernel tap 0 looks at patch tap 1."""
    input = torch.tensor([[[[10.0, 1.0]]]])
    weight = torch.tensor([[[[2.0, 0.0]]]])
    M = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
    assert similarity_conv2d(input, weight, M).item() == 2.0
    assert similarity_conv2d(input, weight, M[None, ..., None, None]).item() == 2.0
    assert effective_weight(weight, M).flatten().tolist() == [0.0, 2.0]


@pytest.mark.filterwarnings(
    "ignore:Using padding='same' with even kernel:UserWarning"
)  # F.conv2d's
@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.grouped])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_padding_by_name_bias_and_no_batch(padding, kind):
    plain = Geometry(1, 3, 4, (6, 7), (4, 3), dilation=(1, 2))
    pads = {"same": (3, 4), "valid": (0, 0)}[padding]
    size = [i + p - r for i, p, r in zip((6, 7), pads, (3, 4), strict=True)]
    geometry = Geometry(1, 3, 4, (size[0] + 3, size[1] + 4), (4, 3), dilation=(1, 2))
    M = similarity(kind, geometry)
    input, weight, bias = plain.input(), plain.weight(), torch.randn(4)
    ours = similarity_conv2d(input[0], weight, M, bias, padding=padding, dilation=(1, 2))
    assert ours.shape == (4, *size)
    padded = F.pad(input, (2, 2, 1, 2)) if padding == "same" else input
    whole = similarity_conv2d(padded, weight, M, bias, dilation=(1, 2))
    torch.testing.assert_close(ours, whole[0])
    ones = torch.ones_like(M) if "diagonal" in kind else None
    if ones is not None:
        torch.testing.assert_close(
            similarity_conv2d(input, weight, ones, bias, padding=padding, dilation=(1, 2)),
            F.conv2d(input, weight, bias, padding=padding, dilation=(1, 2)),
        )


def test_an_empty_batch_and_nan_pass_through():
    weight, M = torch.randn(4, 3, 3, 3), torch.randn(0, 9, 5, 5)
    assert similarity_conv2d(torch.randn(0, 3, 5, 5), weight, M, padding=1).shape == (0, 4, 5, 5)
    input = torch.zeros(1, 3, 5, 5)
    input[0, 1, 2, 2] = float("nan")
    result = similarity_conv2d(input, weight, torch.rand(1, 9, 5, 5), padding=1)
    assert torch.equal(result.isnan(), F.conv2d(input, weight, padding=1).isnan())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"input": torch.zeros(3, 3)},
            r"expected input of shape \(N, C, H, W\) or \(C, H, W\), got \(3, 3\)",
        ),
        (
            {"input": torch.zeros(2, 5, 8, 8)},
            r"expected input with 3 channels, got 5\. The weight \(4, 3, 3, 3\)",
        ),
        (
            {"input": torch.zeros(2, 3, 2, 8)},
            r"padded input of at least \(3, 3\), got \(2, 8\)\. The kernel is larger",
        ),
        (
            {"weight": torch.zeros(4, 3, 9)},
            r"expected weight of shape \(O, C/G, kh, kw\), got \(4, 3, 9\)",
        ),
        (
            {"weight": torch.zeros(4, 1, 3, 3), "groups": 3},
            "groups to divide the 4 kernels of the weight, got 3",
        ),
        ({"groups": 0}, "expected groups of at least 1, got 0"),
        ({"stride": 0}, r"expected stride of at least 1, got \(0, 0\)"),
        ({"padding": -1}, r"expected padding of at least 0, got \(-1, -1\)"),
        ({"bias": torch.zeros(5)}, r"expected bias of shape \(4,\), got \(5,\)"),
        ({"similarity": torch.zeros(8)}, r"expected similarity of shape \(9,\), got \(8,\)"),
        ({"similarity": torch.zeros(9, 8)}, r"expected similarity of shape \(9, 9\), got \(9, 8\)"),
        ({"similarity": torch.zeros(2, 9, 6, 5)}, r"shape \(2, 9, 6, 6\), got \(2, 9, 6, 5\)"),
        (
            {"similarity": torch.zeros(3, 9, 9, 6, 6)},
            r"shape \(2, 9, 9, 6, 6\), got \(3, 9, 9, 6, 6\)",
        ),
        (
            {"similarity": torch.zeros(9, 6, 6)},
            r"one of the shapes \(9,\), \(9, 9\), \(2, 9, 6, 6\), \(2, 9, 9, 6, 6\)",
        ),
        ({"padding": "same", "stride": 2}, r"expected stride 1 with padding='same', got \(2, 2\)"),
    ],
)
def test_bad_shapes_say_what_is_wrong(change, message):
    arguments = {
        "input": torch.zeros(2, 3, 8, 8),
        "weight": torch.zeros(4, 3, 3, 3),
        "similarity": torch.zeros(9),
    }
    with pytest.raises(ShapeError, match="similarity_conv2d: .*" + message):
        similarity_conv2d(**{**arguments, **change})


@pytest.mark.parametrize("batch", [1, 2])
def test_checks_do_not_depend_on_the_batch(batch):
    """One similarity for one image is static, and takes another way through the code."""
    input, weight, M = (
        torch.randn(batch, 4, 5, 5),
        torch.randn(3, 4, 3, 3),
        torch.rand(batch, 9, 1, 1),
    )
    with pytest.raises(ShapeError, match="with the same floating-point dtype"):
        similarity_conv2d(input, weight, M.double())
    bias = torch.randn(3)
    expected = similarity_conv2d(input, weight, M, bias)
    torch.testing.assert_close(similarity_conv2d(input, weight, M, bias.double()), expected)
    with pytest.raises(ShapeError, match=r"divide the 4 channels, got 2\.0"):
        similarity_conv2d(input, weight, M, similarity_groups=2.0)


def test_an_unknown_padding_lists_the_choices():
    with pytest.raises(UnknownNameError, match=r"'same', 'valid', got 'sam'. Did you mean 'same'"):
        similarity_conv2d(
            torch.zeros(1, 1, 3, 3), torch.zeros(1, 1, 3, 3), torch.ones(9), padding="sam"
        )


@pytest.mark.parametrize("stride", [np.int64(2), [2, 2], np.array([2, 2]), torch.Size([2, 2])])
def test_sizes_may_be_what_a_convolution_accepts(stride):
    input, weight, similarity = torch.randn(1, 2, 7, 8), torch.randn(3, 2, 3, 3), torch.rand(9)
    expected = similarity_conv2d(input, weight, similarity, stride=(2, 2))
    assert torch.equal(similarity_conv2d(input, weight, similarity, stride=stride), expected)


@pytest.mark.parametrize("stride", [2.0, (2,), (2, 2, 2), (), "same", None, (2.0, 2)])
def test_other_sizes_are_named(stride):
    with pytest.raises(ValueError, match="two of them for kernel size, stride, padding or"):
        similarity_conv2d(
            torch.randn(1, 2, 7, 8), torch.randn(3, 2, 3, 3), torch.rand(9), stride=stride
        )


def test_a_padding_that_depends_on_the_size_is_exported():
    class Padded(torch.nn.Module):
        def forward(self, x):
            return similarity_conv2d(x, weight, M, padding=(x.shape[2] // 4, x.shape[2] // 4))

    weight, M = torch.randn(3, 2, 3, 3), torch.rand(9)
    height = {2: torch.export.Dim("height", min=5, max=64)}
    program = torch.export.export(Padded(), (torch.randn(1, 2, 8, 7),), dynamic_shapes=(height,))
    x = torch.randn(1, 2, 17, 7)
    torch.testing.assert_close(program.module()(x), Padded()(x))

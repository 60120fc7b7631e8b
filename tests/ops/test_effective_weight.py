"""``Mᵀ W`` against the paper's matrix, for every scope."""

import pytest
import torch
import torch.nn.functional as F
from support import oracle
from support.cases import GEOMETRIES, SCOPES
from torch.autograd import gradcheck, gradgradcheck

from neural_similarity import ShapeError, UnknownNameError
from neural_similarity.ops import effective_weight
from neural_similarity.ops.effective_weight import similarity_blocks


def scoped(geometry, scope, form):
    leading, n = similarity_blocks(geometry.weight(), scope, geometry.groups)
    shape = (*leading, n) if form == "diagonal" else (*leading, n, n)
    return torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("form", ["diagonal", "matrix"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_a_plain_convolution_with_it_is_the_definition(name, scope, form):
    geometry = GEOMETRIES[name]
    input, weight = geometry.input(dtype=torch.float64), geometry.weight(dtype=torch.float64)
    M = scoped(geometry, scope, form)
    seen = geometry.channels // geometry.groups
    truth = oracle.similarity_conv2d(
        input,
        weight,
        oracle.scoped_matrix(M, scope, seen, geometry.kernels, geometry.groups),
        **geometry.options,
    )
    plain = effective_weight(weight, M, scope=scope, groups=geometry.groups)
    ours = F.conv2d(input, plain, **geometry.options)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", ["diagonal", "matrix"])
@pytest.mark.parametrize("scope", SCOPES)
def test_derivatives(scope, form):
    weight = torch.randn(4, 3, 2, 1, dtype=torch.float64, requires_grad=True)
    leading, n = similarity_blocks(weight, scope, 2)
    M = torch.randn(*leading, n, *([n] if form == "matrix" else []), dtype=torch.float64)

    def f(weight, M):
        return effective_weight(weight, M, scope=scope, groups=2)

    assert gradcheck(f, (weight, M.requires_grad_()))
    assert gradgradcheck(f, (weight, M))


@pytest.mark.parametrize("form", ["diagonal", "matrix"])
@pytest.mark.parametrize("scope", SCOPES)
def test_memory_format_is_kept(scope, form):
    weight = torch.randn(4, 6, 3, 5)
    leading, n = similarity_blocks(weight, scope)
    M = torch.randn(*leading, n, *([n] if form == "matrix" else []))
    last = effective_weight(weight.to(memory_format=torch.channels_last), M, scope=scope)
    assert last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(last, effective_weight(weight, M, scope=scope))


@pytest.mark.parametrize(
    ("weight", "M", "options", "message"),
    [
        ((4, 3, 3, 3), (8,), {}, r"shape \(9,\) or \(9, 9\) for scope 'layer', got \(8,\)"),
        ((4, 3, 3, 3), (9, 9), {"scope": "kernel"}, r"\(4, 9\) or \(4, 9, 9\) for scope 'kernel'"),
        ((4, 3, 3, 3), (3, 9), {"scope": "channel", "groups": 2}, r"\(6, 9\) or \(6, 9, 9\)"),
        ((4, 3), (3,), {}, r"\(O, C/G, \*taps\), got \(4, 3\)\. A matrix has no taps"),
        ((4, 3, 3, 3), (9,), {"groups": 3}, "groups to divide the 4 kernels, got 3"),
    ],
)
def test_bad_shapes(weight, M, options, message):
    with pytest.raises(ShapeError, match="effective_weight: .*" + message):
        effective_weight(torch.zeros(weight), torch.zeros(M), **options)


def test_unknown_scope():
    with pytest.raises(
        UnknownNameError, match="'channel', 'full', 'kernel', 'layer', got 'chanel'"
    ):
        effective_weight(torch.zeros(4, 3, 3, 3), torch.zeros(9), scope="chanel")

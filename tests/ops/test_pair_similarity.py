"""Similarities of pairs against the definition, pair by pair."""

import math

import pytest
import torch
from support.cases import EVEN, GEOMETRIES
from torch.autograd import gradcheck, gradgradcheck

from neural_similarity.errors import ShapeError, UnknownNameError
from neural_similarity.ops import pair_similarity

ALL = {**GEOMETRIES, **EVEN}


def operands(geometry, dtype=torch.float64):
    key = geometry.input(dtype=dtype)
    return torch.randn(geometry.batch, geometry.channels, *geometry.positions, dtype=dtype), key


def windows(geometry):
    return geometry.kernel, geometry.stride, geometry.padding, geometry.dilation


def by_definition(query, key, geometry, kernel, groups):
    (kh, kw), stride, padding, dilation = windows(geometry)
    N, D, P, Q = query.shape
    width = D // groups
    result = torch.full((N, groups * kh * kw, P, Q), math.nan, dtype=query.dtype)
    for n in range(N):
        for p in range(P):
            for q in range(Q):
                for a in range(kh):
                    for b in range(kw):
                        y = p * stride[0] - padding[0] + a * dilation[0]
                        x = q * stride[1] - padding[1] + b * dilation[1]
                        inside = 0 <= y < key.shape[2] and 0 <= x < key.shape[3]
                        for s in range(groups):
                            value = 0.0
                            for d in range(s * width, (s + 1) * width):
                                one = float(query[n, d, p, q])
                                other = float(key[n, d, y, x]) if inside else 0.0
                                value += one * other if kernel == "dot" else (one - other) ** 2
                            if kernel == "gaussian":
                                value = math.exp(-value / 2)
                            result[n, s * kh * kw + a * kw + b, p, q] = value
    return result


@pytest.mark.parametrize("kernel", ["dot", "gaussian"])
@pytest.mark.parametrize("name", ALL)
def test_equals_the_definition(name, kernel):
    geometry = ALL[name]
    query, key = operands(geometry)
    for groups in {1, 2 if geometry.channels % 2 == 0 else 3}:
        ours = pair_similarity(query, key, *windows(geometry), kernel=kernel, groups=groups)
        truth = by_definition(query, key, geometry, kernel, groups)
        torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", ["dot", "gaussian"])
def test_derivatives(kernel):
    query = torch.randn(1, 4, 1, 2, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 4, 3, 3, dtype=torch.float64, requires_grad=True)

    def f(query, key):
        return pair_similarity(query, key, (3, 2), (1, 2), 1, (2, 1), kernel=kernel, groups=2)

    assert gradcheck(f, (query, key), check_batched_grad=True)
    assert gradgradcheck(f, (query, key))
    assert gradcheck(lambda key: f(query.detach(), key), (key,), check_batched_grad=True)


@pytest.mark.parametrize("kernel", ["dot", "gaussian"])
def test_one_operand_alone_can_be_differentiated(kernel):
    query, key = operands(GEOMETRIES["strided"])
    both = [query.clone().requires_grad_(), key.clone().requires_grad_()]
    options = windows(GEOMETRIES["strided"])
    gradients = torch.autograd.grad(pair_similarity(*both, *options, kernel=kernel).sum(), both)
    for place in range(2):
        mixed = [query, key]
        mixed[place] = both[place]
        (alone,) = torch.autograd.grad(
            pair_similarity(*mixed, *options, kernel=kernel).sum(), both[place]
        )
        torch.testing.assert_close(alone, gradients[place])


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kernel", ["dot", "gaussian"])
def test_transforms_and_compilers_see_the_same_function(kernel):
    geometry = GEOMETRIES["dilated"]
    query, key = operands(geometry)

    def f(query, key):
        return pair_similarity(query, key, *windows(geometry), kernel=kernel)

    expected = f(query, key)
    singly = torch.func.vmap(lambda q, k: f(q[None], k[None])[0])(query, key)
    torch.testing.assert_close(singly, expected)
    _, slope = torch.func.jvp(f, (query, key), (query, key))
    assert slope.shape == expected.shape

    class Module(torch.nn.Module):
        def forward(self, query, key):
            return f(query, key)

    batch = torch.export.Dim("batch")
    program = torch.export.export(
        Module(), (query, key), dynamic_shapes=({0: batch}, {0: batch})
    ).module()
    again = torch.cat([query, query, query]), torch.cat([key, key, key])
    torch.testing.assert_close(program(*again), torch.cat([expected] * 3))


@pytest.mark.parametrize("kernel", ["dot", "gaussian"])
def test_stores_no_windows_for_the_backward_pass(kernel):
    query, key = (tensor.requires_grad_() for tensor in operands(GEOMETRIES["padded"]))
    saved = []

    def pack(tensor):
        saved.append(tensor.untyped_storage().data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        pair_similarity(query, key, *windows(GEOMETRIES["padded"]), kernel=kernel)
    assert len(set(saved)) <= 3  # query, padded key, and the Gaussian itself


@pytest.mark.parametrize(
    ("query", "key", "options", "message"),
    [
        ((4, 5, 5), (2, 4, 5, 5), {}, r"expected query \(N, D, P, Q\) and key \(N, D, H, W\), got"),
        ((2, 4, 5, 5), (2, 4, 5, 5), {"padding": 0}, r"query of shape \(2, 4, 3, 3\), got"),
        ((2, 3, 5, 5), (2, 4, 5, 5), {}, r"expected query of shape \(2, 4, 5, 5\), got"),
        ((2, 4, 5, 5), (2, 4, 5, 5), {"groups": 3}, "groups to divide the 4 channels, got 3"),
        ((2, 4, 5, 5), (2, 4, 5, 5), {"groups": 0}, "groups to divide the 4 channels, got 0"),
        ((2, 4, 5, 5), (2, 4, 5, 5), {"stride": 0}, "expected stride of at least 1"),
        ((2, 4, 5, 5), (2, 4, 1, 1), {"padding": 0}, r"padded input of at least \(3, 3\), got"),
    ],
)
def test_bad_arguments(query, key, options, message):
    with pytest.raises(ShapeError, match=f"pair_similarity: .*{message}"):
        pair_similarity(torch.zeros(query), torch.zeros(key), 3, **{"padding": 1, **options})


def test_bad_names_and_dtypes():
    features = torch.zeros(1, 2, 4, 4)
    with pytest.raises(UnknownNameError, match="one of 'dot', 'gaussian', got 'cosine'"):
        pair_similarity(features, features, 3, padding=1, kernel="cosine")
    with pytest.raises(ShapeError, match=r"dtype on the same device, got torch.float32 on cpu and"):
        pair_similarity(features, features.double(), 3, padding=1)
    with pytest.raises(ShapeError, match=r"kernel_size of at least 1, got \(0, 0\)"):
        pair_similarity(features, features, 0)


def test_a_guide_of_bytes_is_refused():
    guide = torch.randint(0, 255, (1, 3, 8, 8), dtype=torch.uint8)
    with pytest.raises(ShapeError, match=r"floating point numbers, got torch.uint8\. For an im"):
        pair_similarity(guide, guide, 3, padding=1)

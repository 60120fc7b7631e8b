"""Episodes of a chain of convolutions in compiled code, against its definition."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.ops.episode_chain import (
    ChainLayers,
    can_run_chain,
    chain_features,
    chain_gradients,
    reference_chain,
)
from neural_similarity.ops.similarity_conv import compiled, dispatch

pytestmark = pytest.mark.skipif(compiled.load() is None, reason="no compiled operator here")

EPISODES, IMAGES, N_WAY = 3, 5, 4


def random(*size: int) -> Tensor:
    return torch.randn(size, dtype=torch.float64)


def chain() -> tuple[Tensor, ChainLayers]:
    """Factors, kernels of each episode, and a layer with neither; sizes that all differ."""
    torch.manual_seed(0)
    weights = [random(1, 6, 3, 3, 2), random(EPISODES, 9, 6, 2, 3), random(1, 7, 9, 1, 1)]
    factors = [random(EPISODES, 6), random(0, 0), torch.ones(EPISODES, 1).double()]
    scales, shifts = ([random(W.shape[1]) for W in weights] for _ in range(2))
    layers = ChainLayers(weights, factors, scales, shifts, [1, 0, 0, 2, 0, 0], [1, 0, 1])
    return random(EPISODES, IMAGES, 3, 13, 11), layers


def test_features_are_those_of_the_definition() -> None:
    inputs, layers = chain()
    assert can_run_chain(inputs)
    with dispatch.only("panels"):
        assert not can_run_chain(inputs)
    torch.testing.assert_close(chain_features(inputs, layers), reference_chain(inputs, layers))


def test_gradients_are_those_of_the_definition() -> None:
    inputs, layers = chain()
    leaves = [layers.factors[0], layers.weights[1], layers.factors[2]]
    features = reference_chain(inputs, layers).shape[-1]
    leaves += [random(EPISODES, N_WAY, features), random(EPISODES, N_WAY)]
    labels, rows = torch.tensor([0, 3, 1, 2, 3]), torch.tensor([4, 1, 2])
    ours = chain_gradients(inputs, layers, *leaves[-2:], labels, rows)
    for leaf in leaves:
        leaf.requires_grad_()
    scores = torch.baddbmm(
        leaves[-1].unsqueeze(1), reference_chain(inputs[:, rows], layers), leaves[-2].mT
    )
    losses = [F.cross_entropy(each, labels[rows]) for each in scores]
    names = ("factors", "kernels", "other factors", "weight", "bias")
    expected = torch.autograd.grad(sum(losses), leaves)
    for name, one, other in zip(names, ours, expected, strict=True):
        torch.testing.assert_close(one, other, msg=name)

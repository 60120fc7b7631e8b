"""Few-shot methods that read features, each against a formula written out."""

from math import log

import pytest
import torch
from fewshot_cases import features, made

# In float64 the two ways to compute differ by rounding alone.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def test_proto_by_distances_written_out():
    method, learner = made("proto")
    support, query = features()
    scores = method.feature_scores(learner, support, query)
    for b, q, w in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        prototype = sum(support[b, w]) / support.shape[2]
        expected = -sum((x - y) ** 2 for x, y in zip(query[b, q], prototype, strict=True))
        torch.testing.assert_close(scores[b, q, w], expected, **CLOSE)


@pytest.mark.parametrize("size", [4, 20])  # more images than features, and fewer
def test_ridge_by_the_normal_equations(size):
    method, learner = made("ridge", ridge=0.7, scale=3.0)
    with torch.no_grad():
        learner.head.log_ridge.fill_(log(0.7))  # it was rounded to float32
        learner.head.bias.fill_(0.4)
    support, query = features(size=size)
    scores = method.feature_scores(learner, support, query)
    n_way, n_shot = support.shape[1:3]
    Y = torch.eye(n_way).double().repeat_interleave(n_shot, 0)
    for b in range(len(support)):
        X = support[b].flatten(0, 1)
        W = torch.linalg.inv(X.T @ X + 0.7 * torch.eye(size)) @ X.T @ Y
        torch.testing.assert_close(scores[b], 3 * query[b] @ W + 0.4, **CLOSE)


def test_ridge_trains_its_three_numbers():
    method, learner = made("ridge")
    support, query = features()
    method.feature_scores(learner, support, query).square().sum().backward()
    assert all(p.grad is not None and p.grad != 0 for p in learner.head.parameters())

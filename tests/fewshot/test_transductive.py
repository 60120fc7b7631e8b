"""Transductive methods, each against a formula written out with NumPy in float64."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fewshot_cases import episodes, features, made, network_of
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import query_labels
from neural_similarity.fewshot.methods.transductive.laplacianshot import bound_updates
from neural_similarity.fewshot.methods.transductive.pt_map import transport_plan

CLOSE = {"rtol": 1e-7, "atol": 1e-9}


def unit(x):
    return x / np.sqrt((x * x).sum(-1, keepdims=True))


def rectified(support, query, scale, top):
    """BD-CSPN's prototypes of one episode, and the shifted queries, in loops."""
    n_way = len(support)
    query = query + support.reshape(-1, support.shape[-1]).mean(0) - query.mean(0)
    means = support.mean(1)
    cosines = np.array([[unit(x) @ unit(p) for p in means] for x in query])
    prototypes = []
    for w in range(n_way):
        members = [q for q in range(len(query)) if cosines[q].argmax() == w]
        members = sorted(members, key=lambda q: -cosines[q, w])[:top]
        rows = [*support[w], *query[members]]
        weights = np.exp([scale * unit(row) @ unit(means[w]) for row in rows])
        total = sum(a * row for a, row in zip(weights, rows, strict=True))
        prototypes.append(total / weights.sum())
    return np.stack(prototypes), query


@pytest.mark.parametrize(("scale", "top"), [(10.0, 8), (10.0, 1), (1.0, None)])
def test_bd_cspn_by_a_loop(scale, top):
    method, network = made("bd_cspn", scale=scale, top=top)
    support, query = features(count=3)
    scores = method.feature_scores(network, support, query).numpy()
    for b in range(3):
        shots, asked = unit(support[b].numpy()), unit(query[b].numpy())
        prototypes, asked = rectified(shots, asked, scale, top)
        np.testing.assert_allclose(scores[b], unit(asked) @ unit(prototypes).T, **CLOSE)


def test_queries_rectify_a_prototype_by_hand():
    """One shot each, no shift left: the query joins class 0 with equal weight if ε is 0."""
    method, network = made("bd_cspn", scale=0.0)
    support = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]]).double()
    query = torch.tensor([[[0.8, 0.6], [0.2, 0.4]]]).double()
    scores = method.feature_scores(network, support, query)
    near = F.normalize(query[0], dim=1)
    near = near + 0.5 - near.mean(0)
    first = F.normalize(0.5 * (support[0, 0, 0] + near[0]), dim=0)
    second = F.normalize(0.5 * (support[0, 1, 0] + near[1]), dim=0)
    expected = F.normalize(near, dim=1) @ torch.stack((first, second)).T
    torch.testing.assert_close(scores[0], expected, **CLOSE)


@pytest.mark.parametrize("rectify", [True, False])
@pytest.mark.parametrize("laplacian", [1.0, 0.0])
def test_laplacianshot_by_a_loop(laplacian, rectify):
    method, network = made(
        "laplacianshot", laplacian=laplacian, rectify=rectify, features="l2n", steps=6
    )
    support, query = features(count=2)
    scores = method.feature_scores(network, support, query).numpy()
    for b in range(2):
        shots, asked = unit(support[b].numpy()), unit(query[b].numpy())
        prototypes = shots.mean(1)
        if rectify:
            prototypes, asked = rectified(shots, asked, 10.0, None)
        distances = ((asked[:, None] - prototypes) ** 2).sum(-1)
        count = len(asked)
        near = [
            sorted((p for p in range(count) if p != q), key=lambda p: np.sum((asked[p] - x) ** 2))
            for q, x in enumerate(asked)
        ]
        y = np.exp(-distances)
        y /= y.sum(1, keepdims=True)
        for _ in range(6):
            new = [np.exp(-distances[q] + laplacian * sum(y[p] for p in near[q][:2]))
                   for q in range(count)]  # fmt: skip
            y = np.stack([row / row.sum() for row in new])
        np.testing.assert_allclose(np.exp(scores[b]), y, **CLOSE)


def test_bound_updates_lower_the_objective():
    distances = torch.rand(1, 9, 3).double()
    W = (torch.rand(1, 9, 9) < 0.3).double()
    W = (W + W.mT).clamp(max=1)  # the paper's bound is for symmetric affinities

    def objective(logarithms):
        y = logarithms.exp()
        return ((y * logarithms + y * distances).sum() - 0.5 * (y * (W @ y)).sum()).item()

    values = [objective(bound_updates(distances, W, 1.0, steps)) for steps in range(12)]
    assert all(later <= before + 1e-12 for before, later in pairwise(values))
    assert values[-1] < values[0] - 1e-3


def sinkhorn(distances, sharpness):
    plan = np.exp(-sharpness * distances)
    for _ in range(500):
        plan = plan / plan.sum(1, keepdims=True)
        plan = plan * (plan.shape[0] / plan.shape[1] / plan.sum(0))
    return plan


def test_the_plan_is_the_optimal_one():
    distances = torch.rand(4, 12, 3).double()
    plans = transport_plan(distances, 10.0)
    np.testing.assert_allclose(plans.sum(1), 4.0, rtol=1e-9)
    np.testing.assert_allclose(plans.sum(2), 1.0, rtol=1e-5)
    for plan, rows in zip(plans, distances, strict=True):
        np.testing.assert_allclose(plan, sinkhorn(rows.numpy(), 10.0), atol=1e-5)
    torch.testing.assert_close(transport_plan(distances[2:3], 10.0), plans[2:3], rtol=0, atol=0)
    distances[..., 2] += 9  # a class far from all queries
    for sharp in (100.0, 1000.0):
        torch.testing.assert_close(
            transport_plan(distances.float(), sharp), transport_plan(distances, sharp).float(),
            rtol=0, atol=5e-3,  # float32 keeps 9 · 1000 to a thousandth, and Sinkhorn stops early
        )  # fmt: skip


@pytest.mark.parametrize("power", [0.5, 0.0])
def test_pt_map_by_a_loop(power):
    method, network = made("pt_map", power=power, steps=5)
    support, query = (x.abs() for x in features(count=2))
    scores = method.feature_scores(network, support, query).exp().numpy()
    for b in range(2):
        shots, asked = (
            unit(np.log(x + 1e-6) if power == 0 else (x + 1e-6) ** power)
            for x in (support[b].numpy(), query[b].numpy())
        )
        shots = unit(shots - shots.reshape(-1, shots.shape[-1]).mean(0))
        asked = unit(asked - asked.mean(0))
        centres = [rows.mean(0) for rows in shots]
        for step in range(6):
            distances = np.array([[((x - c) ** 2).sum() for c in centres] for x in asked])
            plan = sinkhorn(distances, 10.0)
            if step == 5:
                break
            for w, rows in enumerate(shots):
                total = rows.sum(0) + sum(m * x for m, x in zip(plan[:, w], asked, strict=True))
                mean = total / (len(rows) + plan[:, w].sum())
                centres[w] = centres[w] + 0.2 * (mean - centres[w])
        np.testing.assert_allclose(scores[b], plan, atol=2e-5)  # Sinkhorn stops at 1e-6 there


def test_pt_map_gives_every_class_its_share():
    method, network = made("pt_map")
    support, query = (x.abs() for x in features(count=2, size=6))
    query = query.repeat(1, 3, 1)  # fifteen queries for three classes
    shares = method.feature_scores(network, support, query).exp()
    torch.testing.assert_close(shares.sum(1), torch.full((2, 3), 5.0).double(), **CLOSE)


def tim_loss(prototypes, shots, asked, weights):
    """The paper's loss of one episode, in loops."""

    def shares(x):
        exponents = np.exp([-7.5 * ((x - p) ** 2).sum() for p in prototypes])
        return exponents / exponents.sum()

    errors = [-np.log(shares(x)[w]) for w, rows in enumerate(shots) for x in rows]
    predictions = np.stack([shares(x) for x in asked])
    mean = predictions.mean(0)
    marginal = -(mean * np.log(mean)).sum()
    conditional = -(predictions * np.log(predictions)).sum(1).mean()
    return weights[0] * np.mean(errors) - weights[1] * marginal + weights[2] * conditional


def test_tim_by_steps_of_adam_written_out():
    weights = (0.3, 0.9, 0.2)
    options = dict(zip(("cross_entropy", "marginal", "conditional"), weights, strict=True))
    method, network = made("tim", steps=3, lr=0.01, **options)
    support, query = features(count=2, size=4)
    scores = method.feature_scores(network, support, query).numpy()
    for b in range(2):
        shots, asked = unit(support[b].numpy()), unit(query[b].numpy())
        p = shots.mean(1)
        mean, square = np.zeros_like(p), np.zeros_like(p)
        for step in range(1, 4):
            slope = np.zeros_like(p)
            for index in np.ndindex(p.shape):  # central differences
                apart = np.zeros_like(p)
                apart[index] = 1e-5
                up, down = (tim_loss(p + s * apart, shots, asked, weights) for s in (1, -1))
                slope[index] = (up - down) / 2e-5
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
            length = np.sqrt(square / (1 - 0.999**step)) + 1e-8
            p = p - 0.01 * mean / (1 - 0.9**step) / length
        expected = -7.5 * ((asked[:, None] - p) ** 2).sum(-1)
        np.testing.assert_allclose(scores[b], expected, rtol=1e-5)


def test_tim_needs_no_gradients_switched_on():
    method, network = made("tim")
    support, query = features()
    with torch.no_grad():
        scores = method.feature_scores(network, support, query)
    assert not scores.requires_grad
    torch.testing.assert_close(scores, method.feature_scores(network, support, query))


def test_transductive_finetuning_by_modules_of_torch():
    method, _ = made("transductive_finetune", epochs=3, lr=0.01, entropy=0.7)
    network = network_of(method, 12)  # of few base classes, an image may activate none
    support, query = episodes()
    queries = query.flatten(1, 2)
    scores = method.scores(network, support, queries)
    labels = query_labels(*support.shape[1:3])
    kept = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for b in range(len(support)):
        network.load_state_dict(kept)
        images = support[b].flatten(0, 1)
        base = nn.Sequential(network.backbone, nn.Flatten(), network.head, nn.ReLU())
        with torch.no_grad():
            means = torch.stack([base(rows).sum(0) / len(rows) for rows in support[b]])
        classifier = nn.Linear(network.head.out_features, len(means)).double()
        with torch.no_grad():
            classifier.weight.copy_(means / means.norm(dim=1, keepdim=True))
            classifier.bias.zero_()
        adam = torch.optim.Adam([*network.parameters(), *classifier.parameters()], lr=0.01)

        def predict(x, base=base, classifier=classifier):
            activations = base(x)
            return classifier(activations / activations.norm(dim=1, keepdim=True))

        first = predict(queries[b]).detach()
        for _ in range(3):
            adam.zero_grad()
            nn.CrossEntropyLoss()(predict(images), labels).backward()
            adam.step()
            adam.zero_grad()
            entropy = torch.distributions.Categorical(logits=predict(queries[b])).entropy()
            (0.7 * entropy.mean()).backward()
            adam.step()
        torch.testing.assert_close(scores[b], predict(queries[b]).detach(), **CLOSE)
        assert not torch.allclose(scores[b], first, atol=1e-3)


def test_transductive_finetuning_needs_the_classifier_of_base_classes():
    method, network = made("transductive_finetune")
    network.head = nn.Identity()
    support, query = episodes(1)
    with pytest.raises(ns.ShapeError, match="expected a linear head that classifies base classes"):
        method.scores(network, support, query.flatten(1, 2))

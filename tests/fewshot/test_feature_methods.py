"""Few-shot methods that read features, each against a formula written out."""

from math import log

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fewshot_cases import episodes, features, made
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import as_tasks, query_labels
from neural_similarity.fewshot.methods.classifiers.baseline_pp import CosineClassifier
from neural_similarity.fewshot.methods.classifiers.ridge import RIDGES
from neural_similarity.fewshot.methods.metric.matching import FullContext
from neural_similarity.fewshot.methods.metric.relation import RelationHead

# In float64 the two ways to compute differ by rounding alone.
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def test_proto_by_distances_written_out():
    method, network = made("proto")
    support, query = features()
    scores = method.feature_scores(network, support, query)
    for b, q, w in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        prototype = sum(support[b, w]) / support.shape[2]
        expected = -sum((x - y) ** 2 for x, y in zip(query[b, q], prototype, strict=True))
        torch.testing.assert_close(scores[b, q, w], expected, **CLOSE)


@pytest.mark.parametrize("size", [4, 20])  # more images than features, and fewer
def test_r2d2_by_the_normal_equations(size):
    method, network = made("r2d2", ridge=0.7, scale=3.0)
    with torch.no_grad():
        network.head.log_ridge.fill_(log(0.7))  # it was rounded to float32
        network.head.bias.fill_(0.4)
    support, query = features(size=size)
    scores = method.feature_scores(network, support, query)
    n_way, n_shot = support.shape[1:3]
    Y = torch.eye(n_way).double().repeat_interleave(n_shot, 0)
    for b in range(len(support)):
        X, Q = (F.pad(of, (0, 1), value=1.0) for of in (support[b].flatten(0, 1), query[b]))
        # As the authors' code: features and labels divided by √n.
        X, Y_scaled = X / len(X) ** 0.5, Y / len(X) ** 0.5
        W = torch.linalg.inv(X.T @ X + 0.7 * torch.eye(size + 1).double()) @ X.T @ Y_scaled
        torch.testing.assert_close(scores[b], 3 * Q @ W + 0.4, **CLOSE)


def test_r2d2_trains_its_three_parameters():
    method, network = made("r2d2")
    support, query = features()
    method.feature_scores(network, support, query).square().sum().backward()
    assert all(p.grad is not None and p.grad != 0 for p in network.head.parameters())


def ridge_with_images_left_out(X, Y, query):
    """Scores at the λ whose error is least, each image left out of a regression of its own."""
    strengths = RIDGES * X.square().sum(1).mean()
    errors = []
    for strength in strengths:
        total = 0.0
        for out in range(len(X)):
            kept = torch.arange(len(X)) != out
            centre, middle = X[kept].mean(0), Y[kept].mean(0)
            Z = X[kept] - centre
            system = Z.T @ Z + strength * torch.eye(X.shape[1]).double()
            W = torch.linalg.solve(system, Z.T @ (Y[kept] - middle))
            total += ((X[out] - centre) @ W + middle - Y[out]).square().sum().item()
        errors.append(total)
    best = strengths[errors.index(min(errors))]
    system = X.T @ X + best * torch.eye(X.shape[1]).double()
    return query @ torch.linalg.solve(system, X.T @ Y), errors.index(min(errors))


@pytest.mark.parametrize("size", [4, 20])  # more images than features, and fewer
def test_ridge_with_every_image_left_out_in_turn(size):
    method, network = made("ridge", scale=3.0)
    support, query = features(count=5, size=size, n_shot=4)
    # Classes that differ more and more, so that episodes need different strengths.
    for way in range(support.shape[1]):
        support[:, way, :, way] += torch.arange(5.0).double()[:, None]
    scores = method.feature_scores(network, 1.5 * support, 0.5 * query)  # lengths do not matter
    n_way, n_shot = support.shape[1:3]
    Y = torch.eye(n_way).double().repeat_interleave(n_shot, 0) - 1 / n_way
    chosen = set()
    for b in range(len(support)):
        X = F.normalize(support[b].flatten(0, 1), dim=1)
        centre = X.mean(0)
        asked = F.normalize(query[b], dim=1) - centre
        expected, place = ridge_with_images_left_out(X - centre, Y, asked)
        torch.testing.assert_close(scores[b], 3 * expected, **CLOSE)
        chosen.add(place)
    assert len(chosen) > 1, "every episode took the same λ"


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_nearest_by_a_loop(metric):
    method, network = made("nearest", metric=metric)
    support, query = features()
    scores = method.feature_scores(network, support, query)
    for b, q in torch.cartesian_prod(*map(torch.arange, scores.shape[:2])).tolist():
        best = {}
        for w, s in torch.cartesian_prod(*map(torch.arange, support.shape[1:3])).tolist():
            x, y = query[b, q], support[b, w, s]
            near = x @ y / x.norm() / y.norm() if metric == "cosine" else -((x - y) ** 2).sum()
            best[w] = max(best.get(w, near), near)
        torch.testing.assert_close(scores[b, q], torch.stack(list(best.values())), **CLOSE)


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_nearest_mean_by_a_loop(metric):
    method, network = made("nearest", metric=metric, means=True)
    support, query = features()
    scores = method.feature_scores(network, support, query)
    for b, q, w in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        x, images = query[b, q], list(support[b, w])
        if metric == "cosine":
            mean = sum(image / image.norm() for image in images)
            expected = x @ mean / x.norm() / mean.norm()
        else:
            expected = -((x - sum(images) / len(images)) ** 2).sum()
        torch.testing.assert_close(scores[b, q, w], expected, **CLOSE)


def test_matching_by_an_explicit_softmax():
    method, network = made("matching", scale=7)
    support, query = features()
    scores = method.feature_scores(network, support, query)
    for b, q in torch.cartesian_prod(*map(torch.arange, scores.shape[:2])).tolist():
        weights = [
            [(7 * F.cosine_similarity(query[b, q], x, dim=0)).exp() for x in images]
            for images in support[b]
        ]
        total = sum(map(sum, weights))
        expected = torch.stack([sum(row) / total + 1e-6 for row in weights])
        torch.testing.assert_close(scores[b, q].exp(), expected, **CLOSE)


def test_the_floor_of_matching_is_a_small_probability():
    with pytest.raises(ns.RunError, match=r"Matching: expected floor below 1, got 1\.5"):
        made("matching", floor=1.5)


@pytest.mark.parametrize(("floor", "least"), [(1e-6, log(1e-6)), (0.0, -120)])
def test_the_floor_of_matching_bounds_the_loss(floor, least):
    method, network = made("matching", floor=floor)
    support = torch.tensor([[[[1.0, 0.0]], [[-1.0, 0.0]]]]).double()
    query = torch.tensor([[[0.6, 0.8]]]).double().requires_grad_()
    scores = method.feature_scores(network, support, query)
    assert scores[0, 0, 1].item() == pytest.approx(least)
    scores[0, 0, 1].backward()
    assert query.grad.isfinite().all()
    assert (query.grad.norm() < 1e-6) == (floor > 0)


def test_full_context_embeddings_by_hand():
    """The paper's equations 3 to 6, with gates written out, query by query."""
    context = FullContext(3, steps=2).double()
    support, query = torch.randn(2, 4, 3).double(), torch.randn(2, 5, 3).double()
    cell, found = context.reader, context.read(support, query)
    recurrent = torch.cat((cell.weight_hh, cell.weight_ih[:, 3:]), dim=1)  # of [h, r]
    for b, q in torch.cartesian_prod(torch.arange(2), torch.arange(5)).tolist():
        x, c = query[b, q], torch.zeros(3).double()
        h = x  # with a hidden state of zero, equation 4
        for _ in range(2):
            e = torch.stack([(h @ g).exp() for g in support[b]])
            r = sum(weight * g for weight, g in zip(e / e.sum(), support[b], strict=True))
            gates = cell.weight_ih[:, :3] @ x + recurrent @ torch.cat((h, r))
            enter, forget, fill, leave = (gates + cell.bias_ih + cell.bias_hh).chunk(4)
            c = forget.sigmoid() * c + enter.sigmoid() * fill.tanh()
            h = leave.sigmoid() * c.tanh() + x
        torch.testing.assert_close(found[b, q], h, **CLOSE)


def test_full_context_embeddings_and_order():
    """f reads the support set in whatever order; g goes along it, the same both ways."""
    context = FullContext(4, steps=3).double()
    support, query = torch.randn(2, 6, 4).double(), torch.randn(2, 5, 4).double()
    order = torch.tensor([4, 1, 5, 0, 2, 3])
    read = context.read(support, query)
    torch.testing.assert_close(context.read(support[:, order], query), read, **CLOSE)
    assert not torch.allclose(context.read(support[:, :5], query), read, atol=1e-4)

    along = context.in_context(support)
    assert along.shape == support.shape
    assert not torch.allclose(context.in_context(support[:, order]), along[:, order], atol=1e-4)
    swapped = FullContext(4, steps=3).double()
    state = context.state_dict()
    other = {key: state[_other_direction(key)] for key in state}
    swapped.load_state_dict(other)
    torch.testing.assert_close(swapped.in_context(support.flip(1)), along.flip(1), **CLOSE)


def _other_direction(key: str) -> str:
    if not key.startswith("along."):
        return key
    return key.removesuffix("_reverse") if key.endswith("_reverse") else f"{key}_reverse"


def test_matching_in_full_context():
    plain, network = made("matching", fce=True, floor=0.0)
    support, query = features(size=network.num_features)
    scores = plain.feature_scores(network, support, query)
    assert scores.shape == (2, query.shape[1], 3)
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(scores.shape[:2]).double(), **CLOSE)
    order = torch.tensor([3, 0, 1, 4, 2])
    torch.testing.assert_close(
        plain.feature_scores(network, support, query[:, order]), scores[:, order], **CLOSE
    )
    scores.sum().backward()
    assert all(p.grad is not None for p in network.head.parameters())


def test_relation_by_a_network_built_by_hand():
    method, network = made("relation", filters=4, hidden=3)
    channels, side = network.map_shape[0], network.map_shape[1]
    assert network.map_shape == (6, 2, 2)
    head = network.head.eval()
    with torch.no_grad():
        for norm in (head[1], head[5]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    support, query = features(size=network.num_features)
    scores = method.feature_scores(network, support, query)

    def block(maps, conv, norm):
        maps = F.conv2d(maps, conv.weight, conv.bias, padding=1)
        mean, var = norm.running_mean[:, None, None], norm.running_var[:, None, None]
        return ((maps - mean) / (var + norm.eps).sqrt()).relu()

    for b, q, w in torch.cartesian_prod(*map(torch.arange, scores.shape)).tolist():
        pair = torch.cat((support[b, w].mean(0), query[b, q])).reshape(1, 2 * channels, side, side)
        maps = block(pair, head[0], head[1]).amax((2, 3), keepdim=True)  # 2×2 to 1×1
        flat = block(maps, head[4], head[5]).flatten()
        hidden = (head[9].weight @ flat + head[9].bias).relu()
        expected = torch.sigmoid(head[11].weight @ hidden + head[11].bias)[0]
        torch.testing.assert_close(scores[b, q, w], expected, **CLOSE)


@pytest.mark.parametrize("similarity", [None, ns.StaticSimilarity(), ns.DynamicSimilarity()])
@pytest.mark.parametrize("training", [True, False])
def test_relation_is_the_network_of_concatenated_maps(training, similarity):
    head = RelationHead((3, 5, 4), filters=4, hidden=3).double().train(training)
    if similarity is not None:
        ns.attach(head, similarity)
        with torch.no_grad():
            for parameter in ns.similarity_parameters(head):
                parameter.add_(0.1 * torch.randn_like(parameter))
    classes, query = torch.randn(2, 3, 3, 5, 4).double(), torch.randn(2, 4, 3, 5, 4).double()
    relations = head.compare(classes, query)
    assert relations.shape == (2, 4, 3)
    pairs = [torch.cat((classes[b, w], query[b, q])) for b, q, w in np.ndindex(2, 4, 3)]
    expected = head(torch.stack(pairs)).reshape(2, 4, 3)
    torch.testing.assert_close(relations, expected, **CLOSE)
    weights = list(head.parameters())
    for got, wanted in zip(
        torch.autograd.grad(relations.square().sum(), weights),
        torch.autograd.grad(expected.square().sum(), weights),
        strict=True,
    ):
        torch.testing.assert_close(got, wanted, **CLOSE)


def test_relation_minimises_the_squared_error():
    method, network = made("relation")
    tasks = as_tasks(*episodes())
    scores = method.scores(network, tasks.support, tasks.query)
    wanted = torch.eye(scores.shape[-1]).double()[tasks.labels]
    expected = (scores - wanted).square().mean()
    torch.testing.assert_close(method.loss(network, tasks), expected, **CLOSE)


def tuned_by_torch(module, method, images, labels):
    """The scores of a layer after training by PyTorch's own optimiser."""
    optimiser = torch.optim.SGD(
        module.parameters(), method.lr, method.momentum, method.dampening, method.weight_decay
    )
    for rows in method.batches(len(images)):
        optimiser.zero_grad()
        F.cross_entropy(module(images[rows]), labels[rows]).backward()
        optimiser.step()
    return module


@pytest.mark.parametrize("start", ["zero", "prototypes"])
@pytest.mark.parametrize("batch_size", [4, None])
@pytest.mark.parametrize("momentum", [0.9, 0.0])
@pytest.mark.parametrize("name", ["finetune", "dynamic"])
def test_tuning_by_the_optimiser_of_torch(name, momentum, batch_size, start):
    options = {"lr": 0.1, "momentum": momentum, "weight_decay": 0.03, "epochs": 20}
    method, network = made(name, batch_size=batch_size, start=start, **options)
    support, query = features()
    scores = method.feature_scores(network, support, query)
    labels = query_labels(*support.shape[1:3])
    for b in range(len(support)):
        linear = nn.Linear(support.shape[-1], support.shape[1]).double()
        prototypes = support[b].mean(1) * (start == "prototypes")
        with torch.no_grad():
            linear.weight.copy_(2 * prototypes)
            linear.bias.copy_(-prototypes.square().sum(1))
        first = linear(query[b]).detach()
        tuned_by_torch(linear, method, support[b].flatten(0, 1), labels)
        torch.testing.assert_close(scores[b], linear(query[b]).detach(), **CLOSE)
        assert not torch.allclose(scores[b], first, atol=1e-2)


def test_a_tuned_start_takes_the_papers_steps_first():
    options = {"lr": 0.1, "epochs": 2}
    first, network = made("finetune", epochs=100)
    method, _ = made("finetune", start="tuned", **options)
    support, query = features()
    labels = query_labels(*support.shape[1:3])
    scores = method.feature_scores(network, support, query)
    for b in range(len(support)):
        linear = nn.Linear(support.shape[-1], support.shape[1]).double()
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        for each in (first, method):
            tuned_by_torch(linear, each, support[b].flatten(0, 1), labels)
        torch.testing.assert_close(scores[b], linear(query[b]).detach(), **CLOSE)


@pytest.mark.parametrize("batch_size", [4, None])
def test_tuning_by_angles(batch_size):
    options = {"lr": 0.5, "weight_decay": 0.03, "epochs": 20}
    method, network = made("baseline_pp", batch_size=batch_size, scale=4.0, **options)
    support, query = features()
    scores = method.feature_scores(network, support, query)
    labels = query_labels(*support.shape[1:3])
    for b in range(len(support)):
        classifier = CosineClassifier(support.shape[-1], support.shape[1], 4.0).double()
        with torch.no_grad():
            classifier.weight.copy_((support[b] / support[b].norm(dim=-1, keepdim=True)).mean(1))
            classifier.length.fill_(3**-0.5)  # it was rounded to float32
        first = classifier(query[b]).detach()
        tuned_by_torch(classifier, method, support[b].flatten(0, 1), labels)
        torch.testing.assert_close(scores[b], classifier(query[b]).detach(), **CLOSE)
        assert not torch.allclose(scores[b], first, atol=1e-2)


def test_the_cosine_classifier():
    classifier = CosineClassifier(5, 3, 2.5).double()
    with torch.no_grad():
        classifier.length.copy_(torch.tensor([1.0, 2.0, 3.0]))
    x = torch.randn(4, 5).double()
    cosines = F.cosine_similarity(x[:, None], classifier.weight, dim=-1)
    expected = 2.5 * torch.tensor([1, 2, 3]) * cosines
    torch.testing.assert_close(classifier(x), expected, **CLOSE)


def test_every_image_has_its_turn_in_every_epoch():
    method, _ = made("finetune", epochs=3)
    batches = list(method.batches(10))
    assert [len(rows) for rows in batches] == [4, 4, 2] * 3
    for epoch in range(3):
        seen = torch.cat(batches[3 * epoch : 3 * epoch + 3])
        assert torch.equal(seen.sort().values, torch.arange(10))
    assert all(map(torch.equal, batches, method.batches(10)))

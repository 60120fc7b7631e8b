"""SimpleShot and FEAT, each against a formula written out with NumPy."""

import numpy as np
import pytest
import torch
from support.fewshot_cases import episodes, features, made
from support.fewshot_runs import SMALL

import neural_similarity as ns
from neural_similarity.fewshot import as_tasks, mean_feature
from neural_similarity.fewshot.methods.metric.feat import SetToSet
from neural_similarity.fewshot.training_data import load_split

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("kind", ["un", "l2n", "cl2n"])
def test_simpleshot_by_a_loop(kind):
    method, network = made("simpleshot", features=kind)
    support, query = features()
    centre = torch.randn(support.shape[-1]).double()
    network.base_mean = centre

    def changed(x):
        x = x.numpy() - (centre.numpy() if kind == "cl2n" else 0)
        return x if kind == "un" else x / np.sqrt((x * x).sum())

    scores = method.feature_scores(network, support, query).numpy()
    for b, q, w in np.ndindex(scores.shape):
        mean = sum(changed(x) for x in support[b, w]) / support.shape[2]
        difference = changed(query[b, q]) - mean
        assert scores[b, q, w] == pytest.approx(-(difference**2).sum(), rel=1e-9)


def test_simpleshot_by_hand():
    """Centred by (1, 1), the images point along the axes; the query leans to the second."""
    method, network = made("simpleshot")
    network.base_mean = torch.tensor([1.0, 1.0]).double()
    support = torch.tensor([[[[5.0, 1.0]], [[1.0, 2.0]]]]).double()
    query = torch.tensor([[[4.0, 5.0]]]).double()  # (3, 4) / 5 once it is centred
    scores = method.feature_scores(network, support, query)
    expected = torch.tensor([[[-(0.16 + 0.64), -(0.36 + 0.04)]]], dtype=torch.float64)
    torch.testing.assert_close(scores, expected, **CLOSE)


def test_centring_needs_the_mean_of_base_images():
    method, network = made("simpleshot")
    network.base_mean = None
    with pytest.raises(ns.RunError, match=r"mean feature of the base images for 'cl2n', got none"):
        method.feature_scores(network, *features())
    assert not made("simpleshot", features="l2n")[0].needs_base_mean


def test_the_mean_feature_is_that_of_all_images():
    dataset = load_split(SMALL, "train")
    backbone = ns.create_model(SMALL.model, 0, None, 1, 8, **SMALL.options).train()
    network = made("simpleshot")[0].build(backbone, 3, (1, 8, 8))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    mean = mean_feature(network, dataset, mean=(0.3,), std=(0.2,))
    assert network.training
    assert all(torch.equal(network.state_dict()[k], v) for k, v in before.items())
    network.eval()
    images = (dataset.images / 255 - 0.3) / 0.2
    expected = torch.stack([network(image[None])[0] for image in images]).mean(0)
    torch.testing.assert_close(mean, expected.detach(), rtol=1e-4, atol=1e-6)


def transformed_set(head, rows):
    """The paper's transformer in NumPy loops."""
    weights = {name: p.detach().numpy() for name, p in head.named_parameters()}
    queries, keys, values = (rows @ weights[f"{n}.weight"].T for n in ("query", "key", "value"))
    out = []
    for row, own in zip(rows, queries, strict=True):
        exponents = np.exp([own @ key / len(own) ** 0.5 for key in keys])
        context = sum(a * v for a, v in zip(exponents / exponents.sum(), values, strict=True))
        total = row + weights["out.weight"] @ context + weights["out.bias"]
        unit = (total - total.mean()) / np.sqrt(total.var() + 1e-5)
        out.append(unit * weights["norm.weight"] + weights["norm.bias"])
    return np.stack(out)


def with_random_norm(network):
    with torch.no_grad():
        network.head.norm.weight.uniform_(0.5, 2)
        network.head.norm.bias.normal_()


def test_feat_by_a_loop():
    method, network = made("feat", temperature=3.0)
    with_random_norm(network)
    support, query = features(size=network.num_features)
    scores = method.feature_scores(network, support, query).detach().numpy()
    for b in range(len(support)):
        prototypes = transformed_set(network.head, support[b].numpy().mean(1))
        for q, w in np.ndindex(scores.shape[1:]):
            distance = ((query[b, q].numpy() - prototypes[w]) ** 2).sum()
            expected = -distance / (3 * network.num_features / 64)
            assert scores[b, q, w] == pytest.approx(expected, rel=1e-9)


def test_the_regulariser_of_feat_by_a_loop():
    method, network = made("feat", temperature=3.0, balance=0.7, temperature2=5.0)
    with_random_norm(network)
    tasks = as_tasks(*episodes(1))
    order = torch.randperm(tasks.query.shape[1])  # which queries belong to a class, labels say
    tasks = tasks._replace(query=tasks.query[:, order], labels=tasks.labels[:, order])
    with torch.no_grad():
        support, query = method.embed_episodes(network, tasks.support, tasks.query)
        loss = method.loss(network, tasks).item()
        scores = method.feature_scores(network, support, query)
    first = torch.nn.functional.cross_entropy(scores[0], tasks.labels[0]).item()
    sets = [
        np.concatenate((support[0, w], query[0, tasks.labels[0] == w]))
        for w in range(support.shape[1])
    ]
    means = [transformed_set(network.head, rows).mean(0) for rows in sets]
    losses = []
    for w, rows in enumerate(sets):
        for row in rows:
            exponents = np.exp([-((row - mean) ** 2).sum() / (5 * len(row) / 64) for mean in means])
            losses.append(-np.log(exponents[w] / exponents.sum()))
    assert loss == pytest.approx(first + 0.7 * np.mean(losses), rel=1e-9)


def test_the_transformer_of_feat_drops_out_only_in_training():
    head = SetToSet(6, 0.5).double()
    rows = torch.randn(3, 6).double()
    assert not torch.equal(head(rows), head(rows))
    head.eval()
    assert torch.equal(head(rows), head(rows))
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(head(rows[order]), head(rows)[order], **CLOSE)


def test_options_of_feat():
    with pytest.raises(ns.RunError, match="Feat: expected temperatures above 0, got 0"):
        made("feat", temperature=0)
    with pytest.raises(ns.RunError, match="Feat: expected dropout below 1, got 1"):
        made("feat", dropout=1)

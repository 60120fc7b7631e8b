"""What all few-shot methods promise."""

import re
from pathlib import Path

import pytest
import torch
from support.fewshot_cases import (
    IMAGE,
    N_QUERY,
    N_WAY,
    backbone,
    episodes,
    made,
    network_of,
    with_base_mean,
)
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import (
    FewShotNetwork,
    Images,
    as_tasks,
    create_method,
    list_methods,
    query_labels,
    register_method,
)

METHODS = list_methods()
FROM_FEATURES = [name for name in METHODS if create_method(name).from_features]
TRANSDUCTIVE = [name for name in METHODS if create_method(name).transductive]
INDUCTIVE = [name for name in METHODS if name not in TRANSDUCTIVE]


def batches_of(method):
    images = Images(torch.randn(9, *IMAGE).double(), torch.arange(9) % N_WAY)
    tasks = as_tasks(*episodes())
    return {"images": [images], "episodes": [tasks], "both": [images, tasks]}[method.trains_on]


def test_which_methods_are_transductive():
    assert TRANSDUCTIVE == ["bd_cspn", "laplacianshot", "pt_map", "tim", "transductive_finetune"]
    assert create_method("tim").inference == "transductive"
    assert create_method("proto").inference == "inductive"
    assert create_method("proto", batch_norm="batch").inference == "transductive"


@pytest.mark.parametrize("name", TRANSDUCTIVE)
def test_queries_of_an_episode_influence_each_other_in_any_order(name):
    """Episodes do not, and a query has no place from which its class could be guessed."""
    method, network = made(name)
    support, query = episodes()
    queries = query.flatten(1, 2)
    order = torch.randperm(queries.shape[1])
    with torch.no_grad():
        scores = method.scores(network, support, queries)
        alone = method.scores(network, support[1:], queries[1:])
        mixed = method.scores(network, support[1:], queries[1:, order])
        fewer = method.scores(network, support[1:], queries[1:, :5])
    torch.testing.assert_close(alone[0], scores[1], rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(mixed[0], scores[1, order], rtol=1e-7, atol=1e-9)
    assert not torch.allclose(fewer[0], scores[1, :5], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", INDUCTIVE)
def test_scores_of_each_query_alone(name):
    """No query tells of another, and no episode of another."""
    method, network = made(name)
    support, query = episodes()
    queries = query.flatten(1, 2)
    with torch.no_grad():
        scores = method.scores(network, support, queries)
        assert scores.shape == (2, N_WAY * N_QUERY, N_WAY)
        some = torch.tensor([5, 2, 7])
        alone = method.scores(network, support[1:], queries[1:, some])
    # Convolutions of another batch size may add in another order.
    torch.testing.assert_close(alone[0], scores[1, some], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", FROM_FEATURES)
def test_what_is_embedded_once_scores_the_same(name):
    method, network = made(name)
    support, query = episodes()
    with torch.no_grad():
        scores = method.scores(network, support, query.flatten(1, 2))
        shown = method.embed(network, support.flatten(0, 2)).unflatten(0, support.shape[:3])
        asked = method.embed(network, query.flatten(0, 2)).unflatten(0, (2, -1))
        fast = method.feature_scores(network, shown, asked)
    torch.testing.assert_close(fast, scores, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("policy", ["running", "batch"])
@pytest.mark.parametrize("name", METHODS)
def test_scoring_leaves_the_network_as_it_was(name, policy):
    method, network = made(name, batch_norm=policy)
    support, query = episodes()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    learned = [p.requires_grad for p in network.parameters()]
    with torch.no_grad():
        method.scores(network, support, query.flatten(1, 2))
    after = network.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())
    assert [p.requires_grad for p in network.parameters()] == learned
    assert all(p.grad is None for p in network.parameters())
    assert not any(module.training for module in network.modules())


@pytest.mark.parametrize("name", METHODS)
def test_batch_statistics_are_those_of_the_episode(name):
    """Queries tell of each other, episodes still do not."""
    method, network = made(name, batch_norm="batch")
    assert not method.from_features
    support, query = episodes()
    queries = query.flatten(1, 2)
    with torch.no_grad():
        scores = method.scores(network, support, queries)
        alone = method.scores(network, support[1:], queries[1:])
        fewer = method.scores(network, support[1:], queries[1:, :5])
    torch.testing.assert_close(alone[0], scores[1], rtol=1e-7, atol=1e-9)
    assert not torch.allclose(fewer[0], scores[1, :5], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_training_lowers_the_loss(name):
    method, network = made(name)
    batches = batches_of(method)
    network.train()
    optimiser = torch.optim.Adam([p for p in network.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(8):
        torch.manual_seed(0)  # what a loss draws is the same in every step
        loss = sum(method.loss(network, batch) for batch in batches)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    used = [p for p in network.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in used)


@pytest.mark.parametrize("name", METHODS)
def test_any_module_that_returns_features(name):
    method = create_method(name)
    plain = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).double()
    network = with_base_mean(method, method.build(plain, N_WAY, IMAGE).eval())
    assert network.map_shape == (4, 6, 6)
    support, query = episodes(1)
    with torch.no_grad():
        scores = method.scores(network, support, query.flatten(1, 2))
    assert scores.shape == (1, N_WAY * N_QUERY, N_WAY)
    assert scores.dtype == torch.float64


def test_which_methods_embed_once():
    adapt_more = {"maml", "meta_dynamic", "meta_static", "static", "transductive_finetune"}
    assert adapt_more <= set(METHODS) - set(FROM_FEATURES)
    assert not create_method("finetune", tune="all").from_features


def test_the_table_of_methods_is_right():
    """docs/fewshot.md: names, what they train on, and how many numbers a CNN-4 adapts."""
    text = (Path(__file__).parents[2] / "docs" / "fewshot.md").read_text()
    row = r"^\| `(\w+)` \|.*\| (\w+) \| (\w+) \| ([\d,]+) \|$"
    rows = re.findall(row, text, re.MULTILINE)
    assert sorted(name for name, *_ in rows) == METHODS
    for name, inference, trains_on, adapted in rows:
        method = create_method(name)
        assert method.inference == inference, name
        network = ns.create_model("cnn4", 64, method.similarity, image_size=32)
        network = method.build(network, 5, (3, 32, 32))
        assert method.adapted(network, 5) == int(adapted.replace(",", "")), name
        assert method.trains_on == trains_on, name


def test_queries_lie_class_by_class():
    support, query = episodes()
    tasks = as_tasks(support, query)
    for w in range(N_WAY):
        mine = tasks.query[0][tasks.labels[0] == w]
        assert torch.equal(mine, query[0, w])
    assert torch.equal(tasks.labels[1], query_labels(N_WAY, N_QUERY))


@pytest.mark.parametrize(
    ("model", "shape"),
    [("cnn4", (4, 2, 2)), ("cnn9", (256, 1, 1)), ("resnet_cifar", (64, 1, 1))],
)
def test_networks_of_our_models(model, shape):
    options = {"width": 4} if model == "cnn4" else {}
    network = ns.create_model(model, 7, image_size=32, **options)
    count = sum(p.numel() for p in network.parameters())
    classifier = sum(p.numel() for p in network.get_classifier().parameters())
    images = torch.randn(2, 3, 32, 32)
    expected = network.eval().forward_head(network.forward_features(images), pre_logits=True)
    network = FewShotNetwork(network, (3, 32, 32)).eval()
    assert network.map_shape == shape
    torch.testing.assert_close(network(images), expected)
    assert sum(p.numel() for p in network.parameters()) == count - classifier


def test_a_backbone_for_other_images():
    method = create_method("proto")
    with pytest.raises(ns.ShapeError, match=r"expected images of shape \('N', 2, 8, 8\)"):
        method.build(backbone(), 3, (3, 8, 8))
    with pytest.raises(ns.ShapeError, match=r"reads images of shape \(3, 8, 8\), got an error"):
        method.build(nn.Conv2d(2, 4, 3), 3, (3, 8, 8))
    with pytest.raises(ns.ShapeError, match=r"of shape \(1, ...\) for one image, got tuple"):
        method.build(nn.LSTM(8, 4), 3, (2, 8, 8)[:2])


def test_unknown_names_and_options():
    with pytest.raises(ns.UnknownNameError, match=r"got 'prototype'\. Did you mean 'proto'\?"):
        create_method("prototype")
    with pytest.raises(ns.UnknownNameError, match=r"create_method\('ridge'\): .* got 'scal'"):
        create_method("ridge", scal=2)
    with pytest.raises(ns.UnknownNameError, match=r"batch_norm to be one of 'batch', 'running'"):
        create_method("proto", batch_norm="eval")
    with pytest.raises(ns.RunError, match="scale to be a finite number of at least 0, got 'much'"):
        create_method("ridge", scale="much")
    with pytest.raises(ns.RunError, match="ridge above 0, got 0"):
        create_method("r2d2", ridge=0)
    with pytest.raises(ns.RunError, match="strength above 0, got 0"):
        create_method("linear", strength=0)
    for value in (float("inf"), float("nan")):
        with pytest.raises(ns.RunError, match=f"scale to be a finite number .* got {value}"):
            create_method("matching", scale=value)


def test_a_name_belongs_to_one_method():
    proto = type(create_method("proto"))
    assert register_method(proto) is proto
    with pytest.raises(ns.DuplicateNameError, match=r"got 'proto' for .*belongs to .*\.Proto\."):
        register_method(type("Other", (proto,), {}))
    assert type(create_method("proto")) is proto


def test_a_frozen_backbone_keeps_its_statistics():
    network = network_of(create_method("proto"))
    network.freeze()
    network.train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    network(torch.randn(4, *IMAGE).double())
    assert all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    assert not any(p.requires_grad for p in network.backbone.parameters())

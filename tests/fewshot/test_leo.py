"""LEO against formulas in NumPy, and its gradient against differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.fewshot_cases import N_WAY, episodes, features, made
from support.fewshot_runs import SMALL
from support.killing import Killed, killed_at
from torch.distributions import Normal, kl_divergence

import neural_similarity as ns
from neural_similarity.fewshot import as_tasks, train_method
from neural_similarity.fewshot.methods.gradient import leo

CLOSE = {"rtol": 1e-9, "atol": 1e-10}


def small(**options):
    """A method with codes of three numbers, and a head that is the same in every test."""
    method, network = made("leo", **{"latents": 3, "inner_steps": 2, "tuning_steps": 2, **options})
    with torch.no_grad():
        network.head.inner_rates.uniform_(0.5, 1.5)
        network.head.tuning_rates.uniform_(0.5, 1.5)
    return method, network


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def softplus(u):
    return np.log1p((np.e - 1) * np.exp(u))


def arrays(head):
    return {name: p.detach().numpy() for name, p in head.named_parameters()}


@torch.no_grad()
def test_codes_by_a_loop_over_pairs():
    _, network = small()
    support, _ = features(size=network.num_features)
    means, deviations = network.head.codes(support)
    w = arrays(network.head)
    for b in range(len(support)):
        images = unit(support[b].numpy()) @ w["encoder.weight"].T
        for way, own in enumerate(images):
            related = []
            for mine in own:
                for theirs in images.reshape(-1, 3):
                    pair = np.concatenate([mine, theirs])
                    hidden = np.maximum(w["relation.0.weight"] @ pair, 0)
                    hidden = np.maximum(w["relation.1.weight"] @ hidden, 0)
                    related.append(w["relation.2.weight"] @ hidden)
            expected = np.mean(related, axis=0)
            np.testing.assert_allclose(means[b, way], expected[:3], rtol=1e-9)
            np.testing.assert_allclose(deviations[b, way], softplus(expected[3:]), rtol=1e-9)


@torch.no_grad()
def test_weights_by_hand():
    _, network = small()
    D = network.num_features
    codes = torch.randn(1, N_WAY, 3).double()
    means, deviations = network.head.weights(codes)
    decoded = codes[0].numpy() @ arrays(network.head)["decoder.weight"].T
    np.testing.assert_allclose(means[0], decoded[:, :D], rtol=1e-9)
    expected = np.sqrt(2 / (N_WAY + D)) * softplus(decoded[:, D:])
    np.testing.assert_allclose(deviations[0], expected, rtol=1e-9)


def test_all_steps_of_a_test_with_gradients_by_hand():
    """``dL/dθ = (p − y)ᵀ x / K`` of the softmax, and ``dL/dz`` by the chain rule."""
    method, network = small()
    support, query = features(size=network.num_features, n_shot=2)
    with torch.no_grad():
        scores = method.feature_scores(network, support, query).numpy()
        first, _ = network.head.codes(support)
    w = arrays(network.head)
    decoder = w["decoder.weight"][: network.num_features]
    targets = np.repeat(np.eye(N_WAY), 2, axis=0)
    for b in range(len(support)):
        images = unit(support[b].flatten(0, 1).numpy())

        def slope(weights, images=images):
            exponents = np.exp(images @ weights.T)
            return (exponents / exponents.sum(1, keepdims=True) - targets).T @ images / 2

        z = first[b].numpy()
        for _ in range(2):
            z = z - w["inner_rates"] * (slope(z @ decoder.T) @ decoder)
        weights = z @ decoder.T
        for _ in range(2):
            weights = weights - w["tuning_rates"] * slope(weights)
        expected = unit(query[b].numpy()) @ weights.T
        np.testing.assert_allclose(scores[b], expected, rtol=1e-8)


def test_tests_are_deterministic_and_training_draws():
    method, network = small(dropout=0.5)
    support, query = features(size=network.num_features)

    def scores(seed):
        torch.manual_seed(seed)
        return method.feature_scores(network, support, query)

    assert torch.equal(scores(0), scores(1))
    torch.testing.assert_close(
        method.feature_scores(network, 3 * support, 5 * query), scores(0), **CLOSE
    )  # features have unit length
    network.train()
    assert torch.equal(scores(0), scores(0))
    assert not torch.allclose(scores(0), scores(1), rtol=1e-2)


def test_steps_do_not_overflow():
    """The gradient of a code has the deviation of the weights in it, which depends on the code."""
    method, network = small(inner_steps=5, inner_lr=1.0)
    with torch.no_grad():
        network.head.decoder.weight *= 20
    network.train()
    for seed in range(5):
        torch.manual_seed(seed)
        loss = method.loss(network, as_tasks(*episodes()))
        slopes = torch.autograd.grad(loss, list(network.head.parameters()))
        assert loss.isfinite()
        assert all(slope.isfinite().all() for slope in slopes)


def test_many_episodes_in_parts(monkeypatch):
    method, network = small()
    support, query = features(3, size=network.num_features)
    whole = method.feature_scores(network, support, query)
    monkeypatch.setattr(leo, "_PAIRS", 1)
    torch.testing.assert_close(method.feature_scores(network, support, query), whole, **CLOSE)


def test_the_gradient_of_training_goes_through_all_steps():
    """Of every parameter, against differences; without second derivatives they would not agree."""
    method, network = small(dropout=0.2, encoder_penalty=0.0, orthogonality=0.5, weight_penalty=0.1)
    tasks = as_tasks(*episodes())
    network.train()

    def loss():
        torch.manual_seed(3)
        return method.loss(network, tasks)

    loss().backward()
    assert all(p.grad is None for p in network.backbone.parameters())
    for name, parameter in network.head.named_parameters():
        direction = torch.randn_like(parameter)
        ends = []
        for distance in (1e-5, -1e-5):
            with torch.no_grad():
                parameter += distance * direction
            ends.append(loss().item())
            with torch.no_grad():
                parameter -= distance * direction
        expected = (ends[0] - ends[1]) / 2e-5
        got = (parameter.grad * direction).sum().item()
        assert abs(got) > 1e-6, name
        assert got == pytest.approx(expected, rel=1e-5, abs=1e-7), name


def test_first_order_gradients_are_others(monkeypatch):
    method, network = small()
    tasks = as_tasks(*episodes())
    network.train()

    def gradient():
        torch.manual_seed(3)
        return torch.autograd.grad(method.loss(network, tasks), network.head.decoder.weight)[0]

    exact, grad = gradient(), torch.autograd.grad

    def detached(loss, tensor, create_graph):
        return [slope.detach() for slope in grad(loss, tensor, retain_graph=True)]

    monkeypatch.setattr(leo.torch.autograd, "grad", detached)
    torch.manual_seed(3)
    loss = method.loss(network, tasks)
    (first_order,) = grad(loss, network.head.decoder.weight)
    assert not torch.allclose(first_order, exact, rtol=1e-2)


def test_the_terms_of_the_loss():
    terms = ("divergence", "encoder_penalty", "weight_penalty", "orthogonality")
    free, network = small(**dict.fromkeys(terms, 0.0))
    head, tasks = network.head, as_tasks(*episodes())
    network.train()

    def loss(**weights):
        torch.manual_seed(5)
        return replace(free, **weights).loss(network, tasks)

    support = network(tasks.support.flatten(0, 2)).unflatten(0, tasks.support.shape[:3])
    means, deviations = head.codes(support)
    divergence = kl_divergence(Normal(means, deviations), Normal(0.0, 1.0)).mean().item()
    columns = unit(head.decoder.weight.detach().numpy().T)
    cosines = [[a @ b - (i == j) for j, b in enumerate(columns)] for i, a in enumerate(columns)]
    squares = sum(p.detach().square().sum().item() for p in head.parameters() if p.dim() == 2)
    for name, expected in (
        ("divergence", divergence),
        ("weight_penalty", squares / 2),
        ("orthogonality", np.mean(np.square(cosines))),
    ):
        assert (loss(**{name: 0.3}) - loss()).item() == pytest.approx(0.3 * expected, rel=1e-8)


def test_the_encoder_penalty_pulls_only_the_first_codes():
    method, network = small(encoder_penalty=2.0)
    support, _ = features(size=network.num_features)
    network.train()
    fit = method.fit(network.head, support)
    assert fit.movement.item() > 0
    rates = torch.autograd.grad(
        fit.movement, [network.head.inner_rates], retain_graph=True, allow_unused=True
    )
    assert rates == (None,), "the last codes are held fixed"
    assert torch.autograd.grad(fit.movement, network.head.encoder.weight)[0].any()


def test_a_killed_run_on_another_network_goes_on_to_the_same_bits(tmp_path):
    plain = train_method(replace(SMALL, method="finetune", steps=2), tmp_path / "plain")
    config = replace(
        SMALL, method="leo", backbone=str(plain.folder), steps=4, val_episodes=2,
        checkpoint_minutes=0.0,
    )  # fmt: skip
    whole = train_method(config, tmp_path / "whole")
    with pytest.raises(Killed):
        train_method(config, tmp_path / "broken", callback=killed_at(2))
    resumed = train_method(None, tmp_path / "broken", resume=True)
    a, b = (load_file(run.folder / "last.safetensors") for run in (whole, resumed))
    assert all(torch.equal(a[key], b[key]) for key in a)
    theirs = plain.load_network().backbone.state_dict()
    assert all(torch.equal(a[f"backbone.{key}"], value) for key, value in theirs.items())


def test_options():
    with pytest.raises(ns.RunError, match="Leo: expected dropout below 1, got 1"):
        made("leo", dropout=1)

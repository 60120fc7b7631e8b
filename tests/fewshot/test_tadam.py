"""TADAM against formulas in NumPy, and training on images and episodes in turn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fewshot_cases import IMAGE, N_WAY, backbone, episodes, made
from support.fewshot_runs import SMALL
from torch import nn

import neural_similarity as ns
from neural_similarity.data import train_loader
from neural_similarity.data.augment import no_augment
from neural_similarity.fewshot import Images, Tasks, as_tasks, create_method
from neural_similarity.fewshot.batches import as_batch
from neural_similarity.fewshot.methods.metric.tadam import conditioned_layers
from neural_similarity.fewshot.training_data import EpisodeLoader, MixedLoader, base_classes
from neural_similarity.train.distributed import World

CLOSE = {"rtol": 1e-8, "atol": 1e-9}


def conditioned_network(**options):
    """TADAM on a network of one layer, whose γ is not 1 and whose β is not 0."""
    method = create_method("tadam", **options)
    layers = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()).double()
    nn.init.normal_(layers[1].running_mean)
    nn.init.uniform_(layers[1].running_var, 0.5, 2)
    network = method.build(layers, 4, IMAGE).eval()
    nn.init.constant_(network.head.embedding.gamma_factors, 0.8)
    nn.init.constant_(network.head.embedding.beta_factors, -1.3)
    return method, network


def test_it_starts_as_a_prototypical_network_times_the_scale():
    support, query = episodes()
    queries = query.flatten(1, 2)
    method, network = made("tadam", scale=2.5)
    with torch.no_grad():
        theirs = create_method("proto").scores(network, support, queries)
        torch.testing.assert_close(method.scores(network, support, queries), 2.5 * theirs, **CLOSE)
        network.head.scale.fill_(0.25)
        torch.testing.assert_close(method.scores(network, support, queries), 0.25 * theirs, **CLOSE)
        for factors in (network.head.embedding.gamma_factors, network.head.embedding.beta_factors):
            factors.fill_(0.5)
            scores = method.scores(network, support, queries)
            assert not torch.allclose(scores, 0.25 * theirs, rtol=1e-3)
            factors.zero_()


def residual(net, task):
    """A predictor of γ or β by its definition."""
    out = net.first.weight.numpy() @ task + net.first.bias.numpy()
    for layer in net.rest:
        out = np.maximum(out, 0)
        out = out + layer.weight.numpy() @ out + layer.bias.numpy()
    return out


@torch.no_grad()
def test_scores_by_a_loop_over_images():
    method, network = conditioned_network(scale=1.75)
    support, query = episodes()
    queries = query.flatten(1, 2)
    conv, norm, _ = network.backbone
    means, variances = norm.running_mean.numpy(), norm.running_var.numpy()

    def features(image, gamma, beta):
        maps = F.conv2d(image[None], conv.weight, conv.bias)[0].numpy()
        for c in range(3):
            unit = (maps[c] - means[c]) / np.sqrt(variances[c] + norm.eps)
            maps[c] = gamma[c] * unit + beta[c]  # the BatchNorm's own are 1 and 0
        return np.maximum(maps, 0).ravel()

    scores = method.scores(network, support, queries).numpy()
    embedding = network.head.embedding
    for b in range(len(support)):
        generic = [[features(x, np.ones(3), np.zeros(3)) for x in images] for images in support[b]]
        task = np.mean([np.mean(rows, 0) for rows in generic], 0)
        gamma = 1 + 0.8 * residual(embedding.gammas[0], task)
        beta = -1.3 * residual(embedding.betas[0], task)
        rows = [[features(x, gamma, beta) for x in images] for images in support[b]]
        prototypes = [np.mean(row, 0) for row in rows]
        for q, w in np.ndindex(scores.shape[1:]):
            expected = -1.75 * ((features(queries[b, q], gamma, beta) - prototypes[w]) ** 2).sum()
            assert scores[b, q, w] == pytest.approx(expected, rel=1e-8)


def test_gradients_reach_every_parameter():
    """From images the backbone and the classifier, from episodes all but the classifier."""
    method, network = conditioned_network()
    network.train()
    named = dict(network.named_parameters())
    classifier = {name for name in named if "classifier" in name}
    tasks = as_tasks(*episodes())
    images = Images(torch.randn(8, *IMAGE).double(), torch.arange(8) % 4)
    for batch, learning in (
        (tasks, set(named) - classifier),
        (images, classifier | {name for name in named if name.startswith("backbone")}),
    ):
        network.zero_grad()
        method.loss(network, batch).backward()
        assert {name for name, p in named.items() if p.grad is not None} == learning
        # BatchNorm removes the bias of the convolution before it.
        assert all(named[name].grad.any() for name in learning - {"backbone.0.bias"})


def test_the_loss_of_episodes_has_a_penalty_of_the_factors():
    tasks = as_tasks(*episodes())
    method, network = conditioned_network(film_decay=0.5)
    free = replace(method, film_decay=0.0)
    difference = method.loss(network, tasks) - free.loss(network, tasks)
    assert difference.item() == pytest.approx(0.25 * (0.8**2 + 1.3**2), rel=1e-9)
    images = Images(torch.randn(8, *IMAGE).double(), torch.arange(8) % 4)
    expected = F.cross_entropy(network.head.classifier(network(images.images)), images.labels)
    torch.testing.assert_close(method.loss(network, images), expected)


def test_which_layers_are_conditioned():
    assert len(conditioned_layers(backbone("dynamic"))) == len(conditioned_layers(backbone())) == 2
    with pytest.raises(ns.ShapeError, match="expected a backbone with BatchNorm, got one without"):
        create_method("tadam").build(nn.Conv2d(2, 4, 3), N_WAY, IMAGE)


def test_the_probability_of_images_decays():
    method = create_method("tadam")
    steps = 60
    for step in range(steps):
        assert method.image_share(step, steps) == pytest.approx(0.9 ** (1 + step // 3))
    assert method.image_share(59_999, 60_000) == pytest.approx(0.9**20)
    other = create_method("tadam", auxiliary=0.5, auxiliary_decay=0.25, auxiliary_decays=2)
    assert [other.image_share(step, 4) for step in range(4)] == [0.5, 0.5, 0.125, 0.125]
    assert create_method("tadam", auxiliary=0).image_share(0, 9) == 0
    with pytest.raises(ns.RunError, match=r"auxiliary and auxiliary_decay of at most 1, got 1.5"):
        create_method("tadam", auxiliary=1.5)


def loader(config, world=None, share=None):
    base, _ = base_classes(config)
    numbers, world = base.statistics(), world or World()
    episodes = EpisodeLoader(base, config, *numbers, world)
    images = train_loader(
        base, config.batch_size, augment=no_augment, mean=numbers[0], std=numbers[1],
        seed=config.seed, rank=world.rank, world_size=world.size,
    )  # fmt: skip
    return MixedLoader(images, episodes, share or config.build_method().image_share)


def test_steps_have_images_or_episodes_whatever_came_before():
    mixed = loader(replace(SMALL, method="tadam"))
    halves = [loader(replace(SMALL, method="tadam"), World(rank, 2)) for rank in range(2)]
    kinds = []
    for step in range(12):
        epoch, start = divmod(step, len(mixed))
        batch = as_batch(next(mixed.epoch(epoch, start)))
        kinds.append(type(batch))
        assert (type(batch) is Images) is mixed.has_images(step)
        whole = mixed.image_loader.epoch(step // 4) if type(batch) is Images else (
            mixed.episodes.epoch(epoch)
        )  # fmt: skip
        expected = list(whole)[step % 4]
        parts = [next(half.epoch(epoch, start)) for half in halves]
        for ours, theirs, *shares in zip(batch, expected, *parts, strict=True):
            assert torch.equal(ours, theirs)
            assert torch.equal(ours, torch.cat(shares))
    assert {Images, Tasks} == set(kinds[:8]), "both kinds, also in the run that is killed"
    later = [as_batch(batch) for batch in mixed.epoch(1, 2)]
    assert [type(batch) for batch in later] == kinds[6:8]


def test_how_many_steps_have_images():
    config = replace(SMALL, method="tadam", epoch_steps=500, epochs=4.0)
    mixed = loader(config)
    count = sum(mixed.has_images(step) for step in range(2000))
    expected = 100 * sum(0.9 ** (1 + level) for level in range(20))
    assert abs(count - expected) < 4 * np.sqrt(2000 / 4)  # four standard deviations at most
    other = loader(replace(config, seed=1))
    later = range(500, 600)
    assert [other.has_images(s) for s in later] != [mixed.has_images(s) for s in later]
    share = expected / 2000
    assert mixed.images == round(share * 18 + (1 - share) * 2 * 3 * (2 + 4))
    assert not any(loader(config, share=lambda step, steps: 0.0).has_images(s) for s in range(9))

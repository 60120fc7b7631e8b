"""Static similarities of several episodes, tuned in one pass and one by one."""

import pytest
import torch
from support.fewshot_cases import IMAGE, N_WAY, backbone, episodes
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import create_method
from neural_similarity.fewshot.inner_loop.episode_parameters import (
    named_parameters,
    similarity_names,
)
from neural_similarity.fewshot.inner_loop.many_episodes import ManyEpisodes

# In float64 the two ways to compute differ by rounding alone, and steps carry it on.
CLOSE = {"rtol": 1e-9, "atol": 1e-10}


class Wrapped(nn.Module):
    """A backbone that does something of its own before or after a network."""

    def __init__(self, network, before=lambda x: x, after=lambda x: x):
        super().__init__()
        self.network, self.before, self.after = network, before, after

    def forward(self, images):
        return self.after(self.network(self.before(images)))


def odd_layers(batch_statistics=False):
    """Convolutions and norms with all their options; one that mixes images, if wanted."""
    return nn.Sequential(
        nn.Conv2d(2, 4, (3, 2), stride=(2, 1), padding=1, padding_mode="reflect"),
        nn.BatchNorm2d(4, affine=False),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 3, padding="same", dilation=2, groups=2, bias=False),
        nn.BatchNorm2d(6, track_running_stats=not batch_statistics),
        nn.GroupNorm(2, 6),
        nn.Sequential(nn.Conv2d(6, 5, 1), nn.Sigmoid()),
        nn.Flatten(),
        nn.Unflatten(1, (5, -1)),
        nn.Conv1d(5, 2, 3),
        nn.BatchNorm1d(2),
    )


def network_of(method, network):
    fewshot_network = method.build(network.double(), N_WAY, IMAGE).eval()
    for module in fewshot_network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_var is not None:
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return fewshot_network


def tuned(structure="diagonal", scope="layer"):
    return ns.StaticSimilarity(structure, scope)


def shaken(fewshot_network):
    """Off the identity, where one structure is like another."""
    with torch.no_grad():
        for parameter in named_parameters(
            fewshot_network, similarity_names(fewshot_network.backbone)
        ).values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return fewshot_network


def possible(fewshot_network, support):
    names = similarity_names(fewshot_network.backbone)
    first = {
        name: tensor.detach() for name, tensor in named_parameters(fewshot_network, names).items()
    }
    return ManyEpisodes(fewshot_network.backbone).works_for(first, support[0].flatten(0, 1)[:2])


def one_by_one(method, fewshot_network, support, query, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ManyEpisodes, "works_for", lambda *_: False)
        return method.scores(fewshot_network, support, query)


@pytest.mark.parametrize("n_shot", [1, 5])
@pytest.mark.parametrize("start", ["zero", "prototypes"])
@pytest.mark.parametrize(
    ("structure", "scope"),
    [("diagonal", "layer"), ("unconstrained", "channel"), ("orthogonal", "kernel")],
)
def test_together_as_one_by_one(structure, scope, start, n_shot, monkeypatch):
    method = create_method("static", lr=0.1, epochs=3, start=start)
    fewshot_network = shaken(network_of(method, backbone(tuned(structure, scope))))
    support, query = episodes(3, n_shot)
    query = query.flatten(1, 2)
    assert possible(fewshot_network, support)
    scores = method.scores(fewshot_network, support, query)
    expected = one_by_one(method, fewshot_network, support, query, monkeypatch)
    torch.testing.assert_close(scores, expected, **CLOSE)
    swapped = method.scores(fewshot_network, support.roll(1, 0), query)
    assert not torch.allclose(scores, swapped, atol=1e-3)  # an episode learns of its own support


def test_layers_with_all_their_options(monkeypatch):
    method = create_method("static", lr=0.1, epochs=2)
    fewshot_network = shaken(
        network_of(method, ns.attach(odd_layers(), tuned("unconstrained", "full")))
    )
    support, query = episodes(3)
    assert len(similarity_names(fewshot_network.backbone)) == 4
    assert possible(fewshot_network, support)
    scores = method.scores(fewshot_network, support, query.flatten(1, 2))
    expected = one_by_one(method, fewshot_network, support, query.flatten(1, 2), monkeypatch)
    torch.testing.assert_close(scores, expected, **CLOSE)


def with_linear():
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(108, 6))
    return ns.attach(network, ns.StaticSimilarity(target_modules=["0", "2"]))


def shared_similarity():
    network = ns.attach(nn.Sequential(nn.Conv2d(2, 2, 3), nn.Conv2d(2, 2, 3)), tuned())
    first, second = (layer.parametrizations.weight[0].numbers for layer in network)
    second["diagonal"] = first["diagonal"]
    return network


def replaced_forward():
    network = ns.attach(nn.Sequential(nn.Conv2d(2, 3, 3)), tuned())
    network[0].forward = lambda x: 2 * type(network[0]).forward(network[0], x)
    return network


def mixed(images):
    """Every image between two crops of the batch: episodes would be mixed up."""
    return torch.cat([images, images.flip(3)])


ALONE = {
    "a similarity of a matrix": with_linear,
    "a shared similarity": shared_similarity,
    "a forward of its own": replaced_forward,
    "a dynamic similarity": lambda: backbone("dynamic"),
    "a view of memory": lambda: Wrapped(
        ns.attach(nn.Sequential(nn.Conv2d(2, 3, 3)), tuned()), after=lambda x: x.view(len(x), -1)
    ),
    "another order of images": lambda: Wrapped(
        backbone(tuned()), mixed, lambda x: torch.cat(x.chunk(2), 1)
    ),
    "statistics of the batch": lambda: ns.attach(odd_layers(True), tuned("diagonal", "full")),
}


@pytest.mark.parametrize("what", ALONE)
def test_what_must_go_alone(what, monkeypatch):
    method = create_method("static", lr=0.1, epochs=2)
    fewshot_network = shaken(network_of(method, ALONE[what]()))
    support, query = episodes(2)
    assert not possible(fewshot_network, support)
    scores = method.scores(fewshot_network, support, query.flatten(1, 2))
    singles = [method.scores(fewshot_network, support[b : b + 1], query[b : b + 1].flatten(1, 2))[0]
               for b in range(2)]  # fmt: skip
    torch.testing.assert_close(scores, torch.stack(singles), **CLOSE)


def test_statistics_of_the_support_set_are_each_episodes_own():
    method = create_method("static", lr=0.1, epochs=2, batch_norm="batch")
    fewshot_network = shaken(network_of(method, backbone(tuned())))
    support, query = episodes(2)
    scores = method.scores(fewshot_network, support, query.flatten(1, 2))
    alone = method.scores(fewshot_network, support[:1], query[:1].flatten(1, 2))
    torch.testing.assert_close(scores[:1], alone, **CLOSE)


def test_the_backbone_is_as_before():
    fewshot_network = network_of(create_method("static"), backbone(tuned()))
    names = similarity_names(fewshot_network.backbone)
    pairs = {k: torch.stack([t, t]) for k, t in named_parameters(fewshot_network, names).items()}
    images = torch.randn(2, 3, *IMAGE).double()
    before = fewshot_network(images[0])
    ManyEpisodes(fewshot_network.backbone).features(pairs, images)
    with pytest.raises(ns.ShapeError):
        ManyEpisodes(fewshot_network.backbone).features(pairs, images[..., :5])
    assert not any("forward" in vars(module) for module in fewshot_network.modules())
    assert torch.equal(fewshot_network(images[0]), before)

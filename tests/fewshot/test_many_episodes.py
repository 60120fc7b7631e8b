"""Static similarities of several episodes, tuned in one pass and one by one."""

import pytest
import torch
from support.fewshot_cases import IMAGE, N_WAY, backbone, episodes
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import create_method
from neural_similarity.fewshot.inner_loop.chain import find_chain
from neural_similarity.fewshot.inner_loop.episode_parameters import (
    named_parameters,
    similarity_names,
)
from neural_similarity.fewshot.inner_loop.many_episodes import ManyEpisodes
from neural_similarity.ops.similarity_conv import compiled, dispatch

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


def tried(fewshot_network, support):
    """The backbone for many episodes, the tuned parameters and images to try it out."""
    names = similarity_names(fewshot_network.backbone)
    parameters = named_parameters(fewshot_network, names).items()
    first = {name: tensor.detach() for name, tensor in parameters}
    return ManyEpisodes(fewshot_network.backbone), first, support[0].flatten(0, 1)[:2]


def possible(fewshot_network, support):
    episodes, *arguments = tried(fewshot_network, support)
    return episodes.works_for(*arguments)


def one_by_one(method, fewshot_network, support, query, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(ManyEpisodes, "works_for", lambda *_: False)
        return method.scores(fewshot_network, support, query)


@pytest.fixture(params=["compiled", "autograd"])
def way(request):
    """By compiled code, or by autograd where there is none."""
    if request.param == "compiled" and compiled.load() is None:
        pytest.skip("no compiled operator here")
    with dispatch.only("compiled" if request.param == "compiled" else "panels"):
        yield request.param


@pytest.mark.parametrize(("start", "n_shot"), [("zero", 5), ("prototypes", 1), ("tuned", 2)])
@pytest.mark.parametrize(
    ("structure", "scope"),
    [("diagonal", "layer"), ("unconstrained", "channel"), ("orthogonal", "kernel")],
)
def test_together_as_one_by_one(structure, scope, start, n_shot, way, monkeypatch):
    method = create_method("static", lr=0.1, epochs=3, start=start)
    fewshot_network = shaken(network_of(method, backbone(tuned(structure, scope))))
    support, query = episodes(6, n_shot)  # more than autograd takes together
    query = query.flatten(1, 2)
    assert possible(fewshot_network, support)
    assert (find_chain(*tried(fewshot_network, support)) is not None) == (way == "compiled")
    scores = method.scores(fewshot_network, support, query)
    expected = one_by_one(method, fewshot_network, support, query, monkeypatch)
    torch.testing.assert_close(scores, expected, **CLOSE)
    swapped = method.scores(fewshot_network, support.roll(1, 0), query)
    assert not torch.allclose(scores, swapped, atol=1e-3)  # an episode learns of its own support


def odd_chain(middle=None):
    """Layers of all kinds that a chain may have, with sizes that differ and do not fill vectors."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=2),  # below the first tuned layer
        nn.Conv2d(4, 16, (3, 2), padding=(0, 1)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        middle or nn.Identity(),
        nn.Conv2d(16, 8, 3, padding=(2, 1), bias=False),
        nn.BatchNorm2d(8),
        nn.MaxPool2d((2, 2), 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 37, 3, padding=1),
        nn.BatchNorm2d(37, affine=False),
        nn.ReLU(),
        nn.Dropout(),
        nn.Conv2d(37, 19, 1),  # not tuned
        nn.ReLU(),
        nn.Flatten(),
    )


def odd_chain_network(method, middle=None):
    model = ns.attach(odd_chain(middle), ns.StaticSimilarity(target_modules=["1"]))
    ns.attach(model, ns.StaticSimilarity("unconstrained", "full", target_modules=["5", "9"]))
    network = method.build(model.double(), N_WAY, (3, 23, 29)).eval()
    with torch.no_grad():
        for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
            norm.running_mean.uniform_(-1, 1)
            norm.running_var.uniform_(0.5, 2)
            if norm.affine:
                norm.weight.uniform_(-1, 1)
    return shaken(network)


def test_a_chain_with_all_its_options(monkeypatch):
    if compiled.load() is None:
        pytest.skip("no compiled operator here")
    method = create_method("static", lr=0.1, epochs=2)
    network = odd_chain_network(method)
    support = torch.randn(3, N_WAY, 2, 3, 23, 29).double()
    query = torch.randn(3, 4, 3, 23, 29).double()
    assert find_chain(*tried(network, support)) is not None
    scores = method.scores(network, support, query)
    expected = one_by_one(method, network, support, query, monkeypatch)
    torch.testing.assert_close(scores, expected, **CLOSE)
    assert_precise(network, support.flatten(1, 2))


def assert_precise(network, images):
    """In single precision, features of a chain are off by at most twice PyTorch's error."""
    truth = network(images.flatten(0, 1))
    many, first, some = tried(network.float(), images.float().unsqueeze(2))
    chain = find_chain(many, first, some)
    tensors = {name: tensor.expand(len(images), *tensor.shape) for name, tensor in first.items()}
    ours = chain.features(tensors, chain.first_inputs(images.float())).flatten(0, 1)
    theirs = network(images.float().flatten(0, 1))
    allowed = 2 * (theirs - truth).abs().max()
    assert (ours - truth).abs().max() <= allowed


@pytest.mark.parametrize(
    "middle",
    [
        nn.Sigmoid(), nn.Conv2d(16, 16, 3, stride=2), nn.MaxPool2d(3, 2), nn.BatchNorm2d(16),
        Wrapped(nn.Identity(), after=lambda x: 2 * x),
    ],
)  # fmt: skip
def test_what_is_no_chain(middle):
    method = create_method("static")
    network = odd_chain_network(method, middle)
    support = torch.randn(1, N_WAY, 2, 3, 23, 29).double()
    assert possible(network, support)
    assert find_chain(*tried(network, support)) is None


class Twice(nn.Module):
    """A layer that is used twice, or whose input has a name."""

    def __init__(self, named=False):
        super().__init__()
        self.named, self.conv, self.relu = named, nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()
        self.other = nn.ReLU()

    def forward(self, images):
        once = self.relu(self.conv(images))
        return (self.other(input=once) if self.named else self.other(self.conv(once))).flatten(1)


@pytest.mark.parametrize("named", [False, True])
def test_a_layer_that_is_used_twice_is_no_chain(named, monkeypatch):
    method = create_method("static", lr=0.5, epochs=2)
    network = method.build(ns.attach(Twice(named), tuned()).double(), N_WAY, (3, 6, 7)).eval()
    support = torch.randn(2, N_WAY, 2, 3, 6, 7).double()
    query = torch.randn(2, 4, 3, 6, 7).double()
    assert find_chain(*tried(network, support)) is None
    scores = method.scores(network, support, query)
    expected = one_by_one(method, network, support, query, monkeypatch)
    torch.testing.assert_close(scores, expected, **CLOSE)


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

"""BatchNorm with the statistics of the episode, compared with PyTorch's in training mode."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.fewshot_cases import N_WAY, episodes, made
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import query_labels
from neural_similarity.fewshot.inner_loop.batch_norm import fast_batch_norm

CLOSE = {"rtol": 1e-7, "atol": 1e-9}  # double precision, a few steps


def in_training_mode(network):
    """A twin whose BatchNorm goes by the batch that it is given."""
    twin = copy.deepcopy(network)
    for module in twin.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    return twin


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", ["proto", "r2d2", "nearest"])
def test_features_are_of_support_and_queries_together(name, training):
    method, network = made(name, batch_norm="batch")
    support, query = episodes(1)
    twin = in_training_mode(network)
    network.train(training)
    features = twin(torch.cat((support.flatten(0, 2), query.flatten(0, 2))))
    shown = features[: N_WAY * 2].unflatten(0, support.shape[:3])
    expected = method.feature_scores(network, shown, features[N_WAY * 2 :][None])
    scores = method.scores(network, support, query.flatten(1, 2))
    torch.testing.assert_close(scores, expected, **CLOSE)


def scored(name, **options):
    """A method, its network's twin, an episode, and the scores that are to be found again."""
    method, network = made(name, batch_norm="batch", **options)
    support, query = episodes(1)
    scores = method.scores(network, support, query.flatten(1, 2))[0]
    return method, in_training_mode(network), support, query[0].flatten(0, 1), scores


def test_maml_steps_on_the_support_and_tests_on_the_queries_statistics():
    _, twin, support, queries, scores = scored("maml", test_steps=2, inner_lr=0.1)
    optimiser = torch.optim.SGD([*twin.backbone.parameters(), *twin.head.parameters()], lr=0.1)
    take_steps(optimiser, twin, twin.head, support, [torch.arange(N_WAY * 2)] * 2)
    torch.testing.assert_close(scores, twin.head(twin(queries)).detach(), **CLOSE)


def test_tuning_in_small_batches_sees_the_whole_supports_statistics():
    method, twin, support, queries, scores = scored("static", epochs=2, lr=0.3)
    classifier = nn.Linear(twin.num_features, N_WAY).double()
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    tuned = [p.requires_grad_() for p in ns.similarity_parameters(twin.backbone)]
    optimiser = torch.optim.SGD(
        [*tuned, *classifier.parameters()], method.lr, method.momentum, method.dampening,
        method.weight_decay,
    )  # fmt: skip
    take_steps(optimiser, twin, classifier, support, method.batches(N_WAY * 2))
    torch.testing.assert_close(scores, classifier(twin(queries)).detach(), **CLOSE)


def take_steps(optimiser, twin, classifier, support, batches):
    """Steps on some of an episode's images each, in a batch of all."""
    images, labels = support[0].flatten(0, 1), query_labels(N_WAY, 2)
    for rows in batches:
        optimiser.zero_grad()
        F.cross_entropy(classifier(twin(images))[rows], labels[rows]).backward()
        optimiser.step()


@pytest.mark.parametrize("tracks", [True, False])
@pytest.mark.parametrize("sign", [1, -1])
def test_few_passes_give_all_derivatives(sign, tracks, monkeypatch):
    """Two derivatives and the running statistics; pooling comes first if all scales allow it."""
    network = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3, track_running_stats=tracks), nn.MaxPool2d(2),
        nn.ReLU(), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4, momentum=0.3), nn.Softplus(),
    ).double().train()  # fmt: skip
    with torch.no_grad():
        network[1].weight.uniform_(0.5, 1)[1] *= sign
        network[5].bias.uniform_(-1, 1)
    images = torch.randn(5, 2, 9, 8).double()
    twin = copy.deepcopy(network)

    def derivatives(model):
        parameters = [images.requires_grad_(), *model.parameters()]
        output = model(images)
        first = torch.autograd.grad(output.square().sum(), parameters, create_graph=True)
        return output, *first, *torch.autograd.grad(sum(g.cos().sum() for g in first), parameters)

    pooled = []
    pool = network[2].forward
    with monkeypatch.context() as patch:
        patch.setattr(
            nn.MaxPool2d, "forward", lambda self, input: pooled.append(input) or pool(input)
        )
        with fast_batch_norm(network):
            assert "forward" in vars(network[1])
            ours = derivatives(network)
    before_norm = network[0](images)
    assert torch.equal(pooled[0], before_norm) == (sign == 1)
    for one, other in zip(ours, derivatives(twin), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)
    for name, buffer in twin.named_buffers():
        torch.testing.assert_close(network.get_buffer(name), buffer, msg=name)
    assert not any("forward" in vars(module) for module in network.modules())


class Repeated(nn.Module):
    """Uses a norm and a pooling both together and apart."""

    def __init__(self):
        super().__init__()
        self.norm, self.pool = nn.BatchNorm2d(2), nn.MaxPool2d(2)
        self.both = nn.Sequential(self.norm, self.pool, nn.ReLU(), self.norm)

    def forward(self, images):
        return self.both(images) + self.pool(self.both[0](images))


@pytest.mark.parametrize("shape", [(3, 2, 8, 6), (1, 2, 2, 2)])
def test_modules_that_are_used_more_than_once(shape):
    network = Repeated().double().train()
    twin, images = copy.deepcopy(network), torch.randn(shape).double()
    expected = outcome(twin, images)
    with fast_batch_norm(network):
        found = outcome(network, images)
    assert found == expected if isinstance(expected, str) else torch.allclose(found, expected)
    torch.testing.assert_close(network.state_dict(), twin.state_dict())


@pytest.mark.parametrize("shape", [(0, 2, 4, 4), (1, 2, 1, 1)])
def test_batches_without_statistics_are_left_to_pytorch(shape):
    network = nn.Sequential(nn.BatchNorm2d(2)).train()
    images = torch.zeros(shape)
    expected = outcome(copy.deepcopy(network), images)
    with fast_batch_norm(network):
        found = outcome(network, images)
    assert found == expected if isinstance(expected, str) else torch.equal(found, expected)


def test_autocast_keeps_its_dtype():
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.MaxPool2d(2)).train()
    with torch.autocast("cpu", torch.bfloat16), fast_batch_norm(network):
        assert network(torch.randn(2, 2, 6, 6)).dtype is torch.bfloat16


def outcome(network, images):
    """The output, or the message of the error."""
    try:
        return network(images)
    except ValueError as error:
        return str(error)

"""Linear classifiers from few images: the few-shot methods of the same name, and uneven classes."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from support.adapt_cases import METHODS, SEEN, backbone, pictures
from torch import nn

from neural_similarity.adapt import FeatureExtractor, Preprocessing
from neural_similarity.adapt import linear_heads as heads
from neural_similarity.adapt import methods as adapters
from neural_similarity.adapt.methods import make_adapter
from neural_similarity.adapt.training_images import TrainingImages, embed_images
from neural_similarity.fewshot import create_method, list_methods
from neural_similarity.fewshot.methods.classifiers.ridge import RIDGES

N_WAY, N_SHOT, N_QUERY = 3, 4, 5


class InFloat64(Preprocessing):
    """Preprocessing for a network in float64."""

    def normalise(self, images):
        return super().normalise(images).double()


class Unit(nn.Module):
    def forward(self, features):
        return F.normalize(features.flatten(1))


def test_every_method_but_two_is_a_few_shot_method():
    assert set(adapters.METHODS) == set(METHODS)
    assert set(adapters.METHODS) - set(list_methods()) == {"ensemble", "blocks"}


@pytest.mark.parametrize("name", sorted(set(adapters.METHODS) & set(list_methods()) - {"static"}))
def test_with_equally_many_images_it_is_the_few_shot_method(name):
    """The same scores up to a number that all classes share; proto's are scaled as documented.

    What learns from mirror images too gets the images themselves again: they count half each.
    """
    tiny = backbone(METHODS[name])
    module = tiny.module.double()
    seen = InFloat64(SEEN.image_size, SEEN.mean, SEEN.std)
    images, _ = pictures((N_SHOT + N_QUERY,) * N_WAY)
    pixels = torch.stack([seen.read(image) for image in images])
    labels = torch.arange(N_WAY).repeat_interleave(N_SHOT + N_QUERY)
    of_support = (torch.arange(len(labels)) % (N_SHOT + N_QUERY)) < N_SHOT
    rows, asked = of_support.nonzero()[:, 0], (~of_support).nonzero()[:, 0]
    extractor = FeatureExtractor(module, seen, base_classifier=tiny.base_classifier.double())
    data = embed_images(extractor, images, labels, N_WAY)
    adapter = make_adapter(name, replace(data, mirrored=data.features))
    scores = adapter.scores(adapter.fit(rows), asked)

    method = create_method(name)
    reads = nn.Sequential(module, Unit()) if name == "proto" else module
    network = method.build(reads, N_WAY, (3, 8, 8)).eval()
    if name == "laplace":
        weight, bias = tiny.base_classifier.double().split((module.num_features, 1), dim=1)
        network.head = heads.linear(weight, bias[:, 0])
    support = seen.normalise(pixels[rows]).unflatten(0, (N_WAY, N_SHOT))
    with torch.no_grad():
        (expected,) = method.scores(network, support[None], seen.normalise(pixels[asked])[None])
    expected = expected * (heads.SCALE if name == "proto" else 1)
    assert scores.dtype == torch.float64
    assert scores.std() > 0.01, "the scores say nothing"
    torch.testing.assert_close(
        scores - scores.mean(1, keepdim=True),
        expected - expected.mean(1, keepdim=True),
        rtol=1e-8 if name not in ("linear", "laplace") else 1e-3,  # by steps that end somewhere
        atol=1e-9 if name not in ("linear", "laplace") else 1e-3,
    )


@pytest.mark.parametrize(("images", "share"), [(1, 1 / 40), (10, 1 / 4), (30, 1 / 2)])
def test_the_ensemble_averages_two_classifiers_of_one_length(images, share):
    labels = torch.arange(N_WAY).repeat_interleave(images)
    data = embed_images(backbone(), pictures((images,) * N_WAY)[0], labels, N_WAY)
    rows = torch.arange(len(data))
    made = {name: make_adapter(name, data) for name in ("linear", "ridge", "ensemble")}
    adapters.share_fits(made)
    logistic, ridge, both = made.values()
    assert (both.linear, both.ridge) == (logistic, ridge)
    first, second = logistic.fit(rows), ridge.fit(rows)
    assert logistic.fit(rows.clone()) is first, "fitted twice"
    lengths = first.weight.norm(), second.weight.norm()
    expected = (1 - share) * logistic.scores(first, rows)
    expected += share * lengths[0] / lengths[1] * ridge.scores(second, rows)
    torch.testing.assert_close(both.scores(both.fit(rows), rows), expected)


def test_the_average_with_a_classifier_that_has_learned_nothing_is_finite():
    nothing = heads.linear(torch.zeros(3, 4), torch.zeros(3))
    assert heads.average(nothing, nothing, 0.5)(torch.ones(1, 4)).isfinite().all()


def _tuned(method):
    return lambda *arguments: heads.tuned(*arguments, method)


def test_a_class_of_few_images_counts_as_much_as_one_of_many():
    """Of features that tell nothing, a classifier that goes by numbers would tell the larger."""
    labels = torch.tensor([0] * 40 + [1] * 4)
    weights = heads.class_weights(labels, 2)
    assert weights[:40].sum().item() == pytest.approx(
        weights[40:].sum().item(), rel=1e-5
    )  # float32
    X, asked = torch.randn(44, 3), torch.randn(1000, 3)
    tune = _tuned(create_method("finetune"))
    for head in (heads.prototypes, heads.ridge, tune):
        share = head(X, labels, 2)(asked).argmax(1).float().mean()
        assert 0.15 < share < 0.85


def test_ridge_of_uneven_classes_is_that_of_images_repeated():
    """Classes count the same: as if images of the smaller came more often."""
    X, labels = torch.randn(9, 4).double() + 2, torch.tensor([0] * 6 + [1] * 3)
    head = heads.ridge(X, labels, 2)
    repeated = torch.tensor([*range(9), 6, 7, 8])
    centre = X[repeated].mean(0)
    R, Y = X[repeated] - centre, F.one_hot(labels[repeated], 2).double() - 0.5
    share = 9 / 12  # weights sum to the number of images
    trace = share * R.square().sum() / 9
    candidates = [
        heads.SCALE * (X - centre) @ torch.linalg.solve(
            share * R.T @ R + ridge * trace * torch.eye(4).double(), share * R.T @ Y
        )
        for ridge in RIDGES
    ]  # fmt: skip
    assert min((head(X) - one).abs().max() for one in candidates) < 1e-5, "weights are float32"


@pytest.mark.parametrize("seed", range(10))
def test_ridge_leaves_copies_out_together(seed):
    """Against regressions that are fitted without each group; weights of the classes are uneven."""
    torch.manual_seed(seed)
    groups = torch.tensor([0, 1, 2, 3, 4, 4, 4, 7, 8, 8, 10])
    labels = torch.tensor([0, 1, 2, 0, 1, 1, 1, 2, 0, 2, 1])
    X = torch.randn(11, 6).double()[groups] + 0.3 * torch.randn(11, 6).double() + 2
    Y, S = F.one_hot(labels, 3).double() - 1 / 3, heads.class_weights(labels, 3).double()

    def mean(values, rows):
        return (S[rows, None] * values[rows]).sum(0) / S[rows].sum()

    def fitted(rows, penalty):
        R = X[rows] - mean(X, rows)
        gram = R.T @ (S[rows, None] * R) + penalty * torch.eye(6).double()
        return torch.linalg.solve(gram, R.T @ (S[rows, None] * Y[rows]))

    everything = torch.ones(11, dtype=torch.bool)
    centre = mean(X, everything)
    scale = (S[:, None] * (X - centre).square()).sum() / len(X)
    errors = []
    for ridge in RIDGES:
        left_out = torch.empty_like(Y)
        for group in groups.unique():
            out, rest = groups == group, groups != group
            W = fitted(rest, ridge * scale)
            left_out[out] = (X[out] - mean(X, rest)) @ W + mean(Y, rest)
        errors.append((S[:, None] * (left_out - Y).square()).sum())
    best = RIDGES[torch.stack(errors).argmin()]
    expected = heads.SCALE * (X - centre) @ fitted(everything, best * scale)
    together = heads.ridge(X, labels, 3, groups)
    torch.testing.assert_close(together(X), expected, rtol=1e-8, atol=1e-8)


def test_copies_make_a_difference_to_ridge():
    torch.manual_seed(3)
    groups = torch.arange(9).repeat_interleave(4)
    labels = torch.arange(3).repeat_interleave(12)
    X = F.normalize(torch.randn(9, 6)[groups] + 0.05 * torch.randn(36, 6))
    difference = heads.ridge(X, labels, 3)(X) - heads.ridge(X, labels, 3, groups)(X)
    assert difference.abs().max() > 0.1


def test_the_adapter_tells_ridge_which_images_are_copies():
    torch.manual_seed(0)
    labels = torch.arange(3).repeat_interleave(12)
    once = torch.randn(9, 16).repeat_interleave(4, 0)
    features = once + 0.02 * torch.randn(36, 16)
    data = TrainingImages(None, [], labels, 3, features, features, torch.zeros(36, 1, 1, 1))
    assert data.groups.unique(return_counts=True)[1].tolist() == [4] * 9
    rows, unit = torch.arange(36), F.normalize(features)
    fitted = make_adapter("ridge", data).fit(rows).weight
    assert torch.equal(fitted, heads.ridge(unit, labels, 3, data.groups).weight)
    assert not torch.equal(fitted, heads.ridge(unit, labels, 3).weight)
    one_group = heads.ridge(unit[:4], labels[::12].repeat(2)[:4] * 0, 1, torch.zeros(4))
    assert one_group.weight.isfinite().all()

"""Logistic regression on a support set, against scikit-learn and against its own conditions."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

import neural_similarity as ns
from neural_similarity.errors import RunError, ShapeError
from neural_similarity.fewshot import FewShotConfig, FewShotRun, create_method, train_method
from neural_similarity.fewshot.inner_loop.logistic import minimise_cross_entropy, principal_basis
from neural_similarity.fewshot.methods.classifiers.laplace import (
    classifier_rows,
    fit_laplace,
    gaussian_prior,
)
from neural_similarity.fewshot.methods.classifiers.linear import (
    STRENGTHS,
    balanced,
    choose_strength,
    fit_linear,
    inner_folds,
)

UNEVEN = torch.tensor([0] * 9 + [1] * 5 + [2] * 7)


def drawn(labels, size=30, spread=1.0, seed=0):
    """Unit features around a centre for each class, and of mirror images near them."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    X = draw(int(labels.max()) + 1, size)[labels] + spread * draw(len(labels), size) + 1
    return F.normalize(X), F.normalize(X + 0.3 * draw(len(labels), size))


def probabilities(X, weight, bias):
    return (X @ weight.mT + bias.unsqueeze(-2)).softmax(-1)


@pytest.mark.parametrize("size", [4, 30])
@pytest.mark.parametrize("strength", [0.3, 30.0, 1000.0])
def test_it_is_the_regression_of_scikit_learn(strength, size):
    X, mirrored = drawn(UNEVEN, size)
    both, labels = torch.cat((X, mirrored)), UNEVEN.repeat(2)
    theirs = LogisticRegression(C=strength, tol=1e-10, max_iter=20000, class_weight="balanced")
    theirs.fit(both.numpy(), labels.numpy(), sample_weight=np.full(len(labels), 0.5))
    expected = torch.from_numpy(theirs.predict_proba(both.numpy()))
    ours = probabilities(both, *fit_linear(X, UNEVEN, 3, mirrored, strength))
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)
    assert ours.std() > 0.01


@pytest.mark.parametrize("n_shot", [3, 6])
def test_the_strength_has_the_least_error_of_images_left_out(n_shot):
    """Every fold by scikit-learn, for each strength."""
    labels = torch.arange(3).repeat_interleave(n_shot)
    chosen = set()
    for spread in (0.5, 4.0):
        X, _ = drawn(labels, 12, spread)
        folds, losses = inner_folds(labels), []
        for strength in STRENGTHS:
            loss = 0.0
            for fold in range(int(folds.max()) + 1):
                train, test = folds != fold, folds == fold
                theirs = LogisticRegression(C=strength, tol=1e-8, max_iter=20000)
                theirs.fit(X[train].numpy(), labels[train].numpy())
                likely = theirs.predict_proba(X[test].numpy())
                loss -= np.log(likely[np.arange(len(likely)), labels[test].numpy()]).sum()
            losses.append(loss)
        expected = STRENGTHS[int(np.argmin(losses))]
        assert choose_strength(X[None], labels, 3).tolist() == [expected]
        chosen.add(expected)
    assert len(chosen) == 2, "the choice does not depend on the features"


def test_folds_keep_neighbours_together():
    labels = torch.arange(2).repeat(10)
    folds = inner_folds(labels)
    assert folds[labels == 0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert inner_folds(torch.arange(4)).tolist() == [-1] * 4


def test_many_support_sets_at_once_are_each_alone():
    labels = torch.arange(3).repeat_interleave(4)
    sets = torch.stack([drawn(labels, 9, spread, seed)[0] for seed, spread in enumerate((0.3, 3))])
    weight, bias = fit_linear(sets, labels, 3)
    for number, X in enumerate(sets):
        alone = fit_linear(X, labels, 3)
        torch.testing.assert_close(
            probabilities(X, *alone), probabilities(X, weight[number], bias[number]),
            rtol=0, atol=1e-5,
        )  # fmt: skip


def test_repeated_and_constant_features():
    X = torch.ones(6, 5, dtype=torch.float64)
    labels = torch.arange(2).repeat_interleave(3)
    for features in (X, torch.zeros_like(X), drawn(labels, 5)[0][torch.zeros(6).long()]):
        likely = probabilities(features, *fit_linear(features, labels, 2))
        torch.testing.assert_close(likely, torch.full_like(likely, 0.5), rtol=0, atol=1e-4)


def test_the_basis_spans_the_features():
    for n, size in ((5, 12), (12, 5)):
        X = torch.randn(2, n, size, dtype=torch.float64)
        X[:, -1] = X[:, 0] + X[:, 1]
        basis = principal_basis(X)
        coordinates = X @ basis
        torch.testing.assert_close(coordinates @ basis.mT, X, rtol=1e-8, atol=1e-9)
        products = coordinates.mT @ coordinates
        off = products - torch.diag_embed(products.diagonal(dim1=1, dim2=2))
        assert off.abs().max() < 1e-8


def test_far_from_the_solution_it_still_arrives():
    """From saturated scores, where Newton's steps are far too long."""
    X, _ = drawn(UNEVEN, 8)
    weights = torch.ones(len(X), 1, dtype=torch.float64)
    penalties = torch.full((1, 8, 1), 0.1, dtype=torch.float64)
    start = 50 * torch.randn(1, 8, 1, 3, dtype=torch.float64)
    arguments = (X[None], UNEVEN, weights, penalties)
    far = minimise_cross_entropy(*arguments, start)
    near = minimise_cross_entropy(*arguments, torch.zeros_like(start))
    torch.testing.assert_close(far, near, rtol=0, atol=1e-2)


def prior_of(size, classes=20):
    return 0.7 * torch.randn(classes, size + 1, dtype=torch.float64) + torch.arange(size + 1)


@pytest.mark.parametrize("covariance", ["isotropic", "diagonal"])
def test_the_gradient_of_the_posterior_is_zero(covariance):
    X, mirrored = (5 * features for features in drawn(UNEVEN, 6))
    rows = prior_of(6)
    mean, deviation = gaussian_prior(rows, covariance)
    weight, bias = fit_laplace(X, UNEVEN, 3, (mean, deviation), mirrored)
    W = torch.cat((weight, bias[:, None]), 1).requires_grad_()
    counts = torch.bincount(UNEVEN)
    both = F.pad(torch.cat((X, mirrored)), (0, 1), value=1.0)
    of_image = (len(UNEVEN) / (3 * counts[UNEVEN]) / 2).repeat(2)
    losses = F.cross_entropy(both @ W.mT, UNEVEN.repeat(2), reduction="none")
    negative = (losses * of_image).sum() + ((W - mean) / deviation).square().sum() / 2
    (slope,) = torch.autograd.grad(negative, W)
    (first,) = torch.autograd.grad(((W - mean) / deviation).square().sum() / 2, W)
    assert (slope.abs() < 1e-3 * first.abs().max()).all()
    torch.testing.assert_close(mean, rows.mean(0))
    expected = (rows - rows.mean(0)).square().mean(0)
    if covariance == "isotropic":
        expected[:-1] = expected[:-1].mean()
    torch.testing.assert_close(deviation, expected.sqrt())


def test_the_most_probable_weights_by_newtons_method():
    """The posterior of Bauer et al. with its whole Hessian, on the weights themselves.

    The log-likelihood is a sum over images, features are as they are, and the variance is that of
    the base classes' weights.
    """
    labels = torch.arange(3).repeat_interleave(4)
    X = 4 * drawn(labels, 5)[0] + 3
    rows = 0.3 * torch.randn(40, 6, dtype=torch.float64) + 1
    with_bias = F.pad(X, (0, 1), value=1.0)
    mean = rows.mean(0)
    variance = (rows - mean).square().mean(0)
    variance[:-1] = variance[:-1].mean()

    def negative_log_posterior(flat):
        W = flat.view(3, 6)
        likelihood = (with_bias @ W.mT).log_softmax(1)[torch.arange(12), labels].sum()
        return ((W - mean).square() / variance).sum() / 2 - likelihood

    W = mean.repeat(3)
    for _ in range(50):
        slope = torch.autograd.functional.jacobian(negative_log_posterior, W)
        hessian = torch.autograd.functional.hessian(negative_log_posterior, W)
        step = torch.linalg.solve(hessian, slope)
        size = 1.0
        while negative_log_posterior(W - size * step) > negative_log_posterior(W):
            size /= 2
            if size < 1e-6:
                break
        W = W - size * step
    assert slope.abs().max() < 1e-9
    weight, bias = fit_laplace(X, labels, 3, gaussian_prior(rows))
    ours = torch.cat((weight, bias[:, None]), 1)
    assert ours.dtype == torch.float64
    torch.testing.assert_close(ours, W.view(3, 6), rtol=0, atol=1e-4)
    assert (ours - mean).abs().max() > 0.1, "the support set moved nothing"


def test_a_prior_with_a_wide_bias_is_method_linear():
    X, mirrored = drawn(UNEVEN, 6)
    deviation = torch.full((7,), 30.0, dtype=torch.float64).sqrt()
    deviation[-1] = 1e3
    for mean in (0.0, 2.0):  # adds the same to the scores of all classes
        prior = (torch.full_like(deviation, mean), deviation)
        ours = probabilities(X, *fit_laplace(X, UNEVEN, 3, prior, mirrored))
        expected = probabilities(X, *fit_linear(X, UNEVEN, 3, mirrored, 30.0))
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def test_a_prior_without_limits_is_no_prior():
    X = drawn(UNEVEN, 2, spread=3.0)[0]
    wide = torch.full((3,), 1e4, dtype=torch.float64)
    ours = probabilities(X, *fit_laplace(X, UNEVEN, 3, (torch.zeros_like(wide), wide)))
    theirs = LogisticRegression(C=np.inf, tol=1e-10, max_iter=20000, class_weight="balanced")
    expected = theirs.fit(X.numpy(), UNEVEN.numpy()).predict_proba(X.numpy())
    torch.testing.assert_close(ours, torch.from_numpy(expected), rtol=0, atol=1e-4)


def test_laplace_uses_the_rows_of_its_own_classifier():
    method = create_method("laplace")
    network = method.build(nn.Flatten(), 7, (1, 2, 3)).double()
    support, query = torch.randn(2, 3, 4, 6).double(), torch.randn(2, 5, 6).double()
    scores = method.feature_scores(network, support, query)
    prior = gaussian_prior(torch.cat((network.head.weight, network.head.bias[:, None]), 1).detach())
    labels = torch.arange(3).repeat_interleave(4)
    for b in range(2):
        weight, bias = fit_laplace(support[b].flatten(0, 1), labels, 3, prior)
        torch.testing.assert_close(scores[b], query[b] @ weight.mT + bias, rtol=1e-5, atol=1e-6)
    network.head = nn.Identity()
    with pytest.raises(ShapeError, match="expected a linear head with the rows of base classes"):
        method.feature_scores(network, support, query)
    with pytest.raises(ShapeError, match="expected a prior of 6 numbers"):
        fit_laplace(support[0, :, 0, :5], torch.arange(3), 3, prior)


def test_which_layers_have_rows():
    layer = nn.Linear(4, 3, bias=False)
    rows = classifier_rows(layer)
    assert torch.equal(rows[:, :4], layer.weight)
    assert (rows[:, 4] == 0).all()
    assert classifier_rows(nn.Flatten()) is None
    assert classifier_rows(ns.nn.SphereLinear(4, 3)) is None


def test_weights_of_classes_without_images():
    used = torch.tensor([[True, True], [True, False], [True, True]])
    weights = balanced(used, torch.tensor([0, 0, 2]), 3)
    assert weights[:, 0].tolist() == [0.75, 0.75, 1.5]
    assert weights[:, 1].tolist() == [1.0, 0.0, 1.0]


def test_a_shared_backbone_brings_its_classifier(tmp_path):
    tiny = {"options": {"width": 4}, "n_way": 2, "n_shot": 1, "n_query": 1, "val_episodes": 2,
            "threads": 1}  # fmt: skip
    train_method(FewShotConfig(method="finetune", steps=1, seed=1, **tiny), tmp_path / "plain")
    shared = {"backbone": str(tmp_path / "plain"), "epochs": 0.0, **tiny}
    for name in ("laplace", "ridge"):
        train_method(FewShotConfig(method=name, **shared), tmp_path / name)
    heads = {
        name: FewShotRun.open(tmp_path / name).load_network().head.weight
        for name in ("plain", "laplace", "ridge")
    }
    assert torch.equal(heads["laplace"], heads["plain"])
    assert not torch.equal(heads["ridge"], heads["plain"])
    known = [FewShotRun.open(tmp_path / name).has_base_classifier() for name in heads]
    assert known == [True, True, False]
    with pytest.raises(RunError, match="expected a run with a classifier of the same base classes"):
        train_method(
            FewShotConfig(method="laplace", **{**shared, "backbone": str(tmp_path / "ridge")}),
            tmp_path / "none",
        )

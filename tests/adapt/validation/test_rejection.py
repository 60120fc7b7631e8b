"""Images that are unlike every class are rejected."""

import numpy as np
import pytest
import torch

from neural_similarity.adapt.validation.folds import fold_numbers
from neural_similarity.adapt.validation.rejection import Rejection, fit_rejection
from neural_similarity.errors import RunError


def clusters(shots, seed, n_way=6, spread=1.0):
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(n_way, 1, 32, generator=draw)
    points = means + spread * torch.randn(n_way, shots, 32, generator=draw)
    return points, torch.arange(n_way).repeat_interleave(shots)


def test_distances_by_numpy():
    """As a user of the ONNX file computes them."""
    torch.manual_seed(0)
    means, features = torch.randn(4, 7), torch.randn(9, 7)
    found = Rejection(means, 0.3)(features).numpy()
    unit = features.numpy() / np.linalg.norm(features.numpy(), axis=1, keepdims=True)
    centres = means.numpy() / np.linalg.norm(means.numpy(), axis=1, keepdims=True)
    np.testing.assert_allclose(found, 1 - (unit @ centres.T).max(1), atol=1e-6)
    rejection = Rejection(means, 0.3)
    assert torch.equal(rejection.accepts(features), rejection(features) <= 0.3)
    assert torch.allclose(rejection(5 * features), rejection(features), atol=1e-6)
    again = Rejection(torch.zeros(4, 7), 0.0)
    again.load_state_dict(rejection.state_dict())
    assert torch.equal(again.accepts(features), rejection.accepts(features))


@pytest.mark.parametrize("accept", [0.8, 0.95])
def test_new_images_of_the_classes_are_accepted_at_the_stated_rate(accept):
    """Over thirty folders of 60 images; the share has a standard error below a point."""
    shares, others = [], []
    for seed in range(30):
        points, labels = clusters(110, seed)
        few, new = points[:, :10].flatten(0, 1), points[:, 10:].flatten(0, 1)
        labels = torch.arange(6).repeat_interleave(10)
        parts = fold_numbers(labels, 5, seed)
        rejection = fit_rejection(few, labels, 6, parts, accept)
        shares.append(rejection.accepts(new).float().mean().item())
        others.append(rejection.accepts(torch.randn(500, 32)).float().mean().item())
    assert accept - 0.01 < np.mean(shares) < accept + 0.03
    assert np.mean(others) < 0.2


def test_an_image_is_measured_without_itself():
    """Classes of two images in random directions: from a mean of its own each would be near."""
    torch.manual_seed(0)
    points, labels = torch.randn(40, 64), torch.arange(20).repeat(2)
    rejection = fit_rejection(points, labels, 20, fold_numbers(labels, 2, 0), 0.5)
    assert rejection.threshold > 0.5
    assert rejection(points).max() < 0.5


def test_few_images():
    points, labels = clusters(2, 0)
    parts = fold_numbers(labels, 5, 0)
    rejection = fit_rejection(points.flatten(0, 1), labels, 6, parts)
    assert rejection.threshold < 1.5  # the largest of twelve distances
    assert fit_rejection(points.flatten(0, 1), labels, 6, torch.full((12,), -1)) is None
    with pytest.raises(RunError, match=r"fit_rejection: expected accept between 0 and 1, got 95"):
        fit_rejection(points.flatten(0, 1), labels, 6, parts, 95)


def test_copies_count_once():
    points, labels = clusters(6, 0)
    points, labels = points.flatten(0, 1), torch.arange(6).repeat_interleave(6)
    parts, copies = fold_numbers(labels, 3, 0), torch.arange(36).repeat_interleave(4)
    once = fit_rejection(points, labels, 6, parts, 0.8)
    with_copies = (points[copies], labels[copies], 6, parts[copies], 0.8)
    together = fit_rejection(*with_copies, groups=copies)
    torch.testing.assert_close(together.threshold, once.threshold, rtol=1e-5, atol=1e-6)
    assert fit_rejection(*with_copies).threshold < once.threshold

"""Table 7's four networks, and the penalty on their filters."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import Preprocessing
from neural_similarity.models.spherenet import CONFIGURATIONS, SphereNet
from neural_similarity.nn import SelfAttention2d

DOUBLE = {"dtype": torch.float64}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_four_rows_of_table_7(name):
    row = CONFIGURATIONS[name]
    model = ns.create_model(name, num_classes=10)
    assert sum(p.numel() for p in model.parameters()) == row.parameters
    kinds = [type(m) for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert set(kinds) == {row.conv_layer}
    attending = [m for m in model.modules() if isinstance(m, SelfAttention2d)]
    assert len(attending) == len(row.attention)
    assert len(kinds) == 9 + 1 + 3 * len(attending)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_networks_train(name):
    model = ns.create_model(name, 4, image_size=16, widths=(8, 12, 16), hidden=16)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 4
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(images), labels) + ns.filter_orthogonality_penalty(model)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.grad is not None for p in model.parameters())
    gains = [m.gain for m in model.modules() if isinstance(m, SelfAttention2d)]
    assert all(gain != 0 for gain in gains)


def test_attention_starts_as_the_network_without():
    small = {"image_size": 8, "widths": (8, 12, 16), "hidden": 8}
    without = ns.create_model("spherenet9", **small).eval()
    attending = ns.create_model("spherenet9_attention", **small).eval()
    missing = attending.load_state_dict(without.state_dict(), strict=False)
    assert not missing.unexpected_keys
    image = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(attending(image), without(image))


def test_the_orthogonality_penalty_by_hand():
    conv = nn.Conv2d(2, 3, 1, bias=False)
    grouped = nn.Conv2d(4, 4, 1, groups=2, bias=False)
    W, V = conv.weight.detach().flatten(1), grouped.weight.detach().reshape(2, 2, 2)
    expected = 0.0
    for rows in (W, V[0], V[1]):
        for a in range(len(rows)):
            for b in range(len(rows)):
                expected += (float(rows[a] @ rows[b]) - (a == b)) ** 2 / 2
    penalty = ns.filter_orthogonality_penalty(nn.Sequential(conv, grouped), weight=0.1)
    torch.testing.assert_close(penalty.item(), 0.1 * expected, rtol=1e-5, atol=1e-7)
    penalty.backward()
    assert conv.weight.grad.abs().max() > 0


def test_the_orthogonality_penalty_leaves_predictors_alone():
    model = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Linear(4, 2))
    before = ns.filter_orthogonality_penalty(model)
    ns.attach(model, ns.DynamicSimilarity())
    torch.testing.assert_close(ns.filter_orthogonality_penalty(model), before)


def test_networks_that_do_not_fit():
    with pytest.raises(ns.UnknownNameError, match=r"'spherenet9', .*Did you mean 'spherenet9'"):
        ns.create_model("spherenet")
    with pytest.raises(ns.ShapeError, match="of at least 8, got 7"):
        ns.create_model("spherenet9", image_size=7)
    with pytest.raises(ns.ShapeError, match="SelfAttention2d: expected a whole width of at"):
        SelfAttention2d(8, width=0)
    with pytest.raises(ns.ShapeError, match=r"poolings 1 to 3, got \(0,\)"):
        SphereNet(10, attention=(0,))
    model = SphereNet(10, image_size=8, widths=(4, 4, 4), hidden=4)
    with pytest.raises(ns.ShapeError, match=r"\('N', 3, 8, 8\), got \(1, 3, 16, 16\)"):
        model(torch.zeros(1, 3, 16, 16))
    with pytest.raises(ns.ShapeError, match="a model with a convolution, got one without"):
        ns.filter_orthogonality_penalty(nn.Linear(3, 3))


def test_whole_numbers_of_numpy_are_whole_numbers():
    five = np.int64(5)
    model = ns.create_model("cnn4", five, image_size=np.int32(16), width=np.uint8(4))
    assert model(torch.randn(2, 3, 16, 16)).shape == (2, 5)
    assert type(model.classifier.out_features) is type(model.image_size) is int
    kept = [
        ns.SpherePredictor(hidden=five).hidden,
        ns.StaticSimilarity(block_size=five).block_size,
        ns.DynamicSimilarity(block_size=five).block_size,
        ns.DynamicSimilarity(shared_width=five).shared_width,
        Preprocessing(five, (0.5,), (0.5,)).image_size,
    ]
    assert [(type(value), value) for value in kept] == [(int, 5)] * 5
    with pytest.raises(ns.ShapeError, match=r"whole number of at least 0, got (np\.)?True"):
        ns.create_model("cnn4", np.bool_(True))
    with pytest.raises(ns.ShapeError, match=r"hidden to be a whole number .* got np\.float64"):
        ns.ConvPredictor(hidden=np.float64(5))
    for width in (True, 0, "a"):
        with pytest.raises(ns.AttachError, match=f"shared_width of at least 1, got {width!r}"):
            ns.DynamicSimilarity(shared_width=width)

"""Layers in numbers: kinds, parameters and how far M is from the identity."""

from math import sqrt

import pytest
import torch
from support.cases import disturb
from support.networks import PlainCNN
from torch import nn

import neural_similarity as ns
from neural_similarity.convert import describe_layers
from neural_similarity.convert.describe import distance_from_identity, predicted_similarities

IMAGES = (2, 3, 12, 10)


def test_a_plain_network():
    layers = describe_layers(PlainCNN(), torch.randn(IMAGES))
    assert [(x.name, x.kind, x.kernel) for x in layers] == [
        ("features.0", "Conv2d", "3×3"),
        ("features.3", "Conv2d", "3×3"),
        ("features.6", "Conv2d", "3×5"),
        ("classifier", "Linear", ""),
    ]
    assert [x.parameters for x in layers] == [162, 440, 1210, 44]
    assert layers[0].multiply_adds == 120 * 6 * 3 * 9  # of one image
    assert all(x.similarity == "" and x.distance is None for x in layers)


def test_norms_learn_nothing_from_a_description():
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)), ns.StaticSimilarity())
    describe_layers(model.train(), torch.randn(2, 3, 8, 8))
    assert model[1].num_batches_tracked == 0
    assert model[1].training


def test_distances_by_hand():
    gains = torch.tensor([1.0, 4.0, 1.0, 5.0])
    assert distance_from_identity(gains, True).item() == pytest.approx(sqrt((9 + 16) / 4))
    matrix = torch.tensor([[1.0, 3.0], [4.0, 1.0]])
    assert distance_from_identity(matrix, False).item() == pytest.approx(5 / sqrt(2))
    assert distance_from_identity(torch.eye(3).expand(2, 5, 3, 3), False).tolist() == [[0] * 5] * 2


def test_static_layers():
    model = ns.attach(PlainCNN(), ns.StaticSimilarity("diagonal", scope="channel"))
    layer = describe_layers(model, torch.randn(IMAGES))[1]
    assert (layer.similarity, layer.kind) == ("static diagonal, channel", "Conv2d")
    assert (layer.similarity_numbers, layer.parameters, layer.distance) == (54, 440 + 54, 0.0)
    with torch.no_grad():
        model.features[3].parametrizations.weight[0].numbers["diagonal"].fill_(1.5)
    assert describe_layers(model, torch.randn(IMAGES))[1].distance == pytest.approx(0.5)


@pytest.mark.parametrize("shared", [False, True])
def test_parameters_add_up(shared):
    predictor = ns.SpherePredictor(hidden=4)
    config = ns.DynamicSimilarity("kernel_shape", predictor, shared=shared, shared_width=6)
    model = ns.attach(PlainCNN(), config)
    disturb(model)
    layers = describe_layers(model.eval(), torch.randn(IMAGES))
    norms = sum(p.numel() for p in model.features[1].parameters())
    summary = ns.trainable_summary(model)
    assert sum(x.parameters for x in layers) == summary.total - norms
    assert sum(x.similarity_numbers for x in layers) == summary.similarity
    assert layers[0].similarity == "dynamic kernel_shape of diagonal"
    assert all(x.distance > 0 for x in layers[:3])


def test_global_layers_are_named():
    model = nn.Sequential(ns.nn.GlobalSimilarityConv2d(4, 8, 3), ns.nn.SelfAttention2d(8))
    layers = describe_layers(model, torch.randn(1, 4, 6, 5))
    assert [(x.name, x.kind, x.similarity) for x in layers] == [
        ("0", "Conv2d", ""),
        ("0.similarity", "SelfAttention2d", "global"),
        ("1", "SelfAttention2d", "global"),
    ]
    assert sum(x.parameters for x in layers) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("structure", ["diagonal", "psd"])
def test_predictions_are_caught_taps_last(structure):
    config = ns.DynamicSimilarity(structure, ns.SpherePredictor(hidden=4))
    model = ns.attach(PlainCNN(), config).eval()
    disturb(model)
    images = torch.randn(IMAGES)
    caught = predicted_similarities(model, images)
    assert set(caught) == {f"features.{i}.predictor" for i in (0, 3, 6)}
    with torch.no_grad():  # with gradients, BatchNorm is a pass of its own and rounds differently
        M = model.features[0].similarity(images)
    taps = "nkpq->npqk" if structure == "diagonal" else "nijpq->npqij"
    assert torch.equal(caught["features.0.predictor"], torch.einsum(taps, M))


def test_one_image_is_counted_as_one_of_several():
    similarity = ns.DynamicSimilarity(predictor=ns.ImagePredictor(hidden=2))
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)), similarity)
    one, three = (describe_layers(model, torch.randn(n, 3, 8, 8))[0] for n in (1, 3))
    assert one.multiply_adds == three.multiply_adds > 64 * 9 * (3 * 4 + 3)


def test_the_distance_of_a_dynamic_kernel_shape_counts_the_taps_that_are_off():
    layer = ns.nn.DynamicConv2d(3, 4, 3, structure="kernel_shape")
    layer.predictor.shape_numbers.data.zero_()
    (row,) = ns.convert.describe_layers(nn.Sequential(layer), torch.randn(1, 3, 8, 8))
    assert row.distance == pytest.approx(1)

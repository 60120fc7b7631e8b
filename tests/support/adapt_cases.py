"""A tiny backbone, and images of a few classes that it can tell apart."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import FeatureExtractor, Preprocessing
from neural_similarity.adapt import methods as adapt_methods
from neural_similarity.adapt.backbones.files import network_source
from neural_similarity.fewshot.methods.classifiers.laplace import classifier_rows

SEEN = Preprocessing(8, (0.5, 0.4, 0.3), (0.25, 0.26, 0.27))
OPTIONS = {"width": 4, "growth": (1, 2), "depths": (1, 1), "hidden": None}
PREDICTOR = ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=4))

METHODS = {name: PREDICTOR if name == "dynamic" else None for name in adapt_methods.METHODS}
"""Every method, with the similarity of its backbone."""
EYE = FeatureExtractor(nn.AvgPool2d(4), SEEN, "eye")
"""A backbone that has learned nothing."""

COUNTS = (4, 3, 5)
"""Images of each class in the folder that the command is run on."""
PLAIN = ("--backbone", "plain.safetensors")
THEIRS = (
    "adapt", "mine", "--out", "birds", "--image-size", 8, "--mean", "0.5,0.5,0.5",
    "--std", "0.2,0.2,0.2", "--backbone",
)  # fmt: skip
"""The command with a third-party function, whose name comes next."""


def network(similarity: object = None) -> nn.Module:
    """Random kernels; BatchNorm has seen images, and predictions are not the identity."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = ns.create_model("cnn9", 3, similarity, 3, 8, **OPTIONS).train()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "predict" in name:
                    parameter.add_(0.1 * torch.randn_like(parameter))
            for _ in range(5):
                model(torch.randn(32, 3, 8, 8))
    return model.eval()


def backbone(similarity: object = None) -> FeatureExtractor:
    model = network(similarity)
    source = network_source(model, "cnn9", OPTIONS, 3, 8)
    rows = 10 * classifier_rows(model.classifier)  # it was never trained; weights would grow
    model.classifier = nn.Identity()
    return FeatureExtractor(model, SEEN, "tiny", source, "a card", rows)


def plain_factory() -> nn.Module:
    """A third-party network, with a classifier that nothing names."""
    torch.manual_seed(7)
    features = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten())
    return nn.Sequential(features, nn.Linear(54, 11))


def extractor() -> FeatureExtractor:
    """The third-party network with its preprocessing, in training mode."""
    return FeatureExtractor(plain_factory()[0].train(), SEEN)


def preprocessing() -> Preprocessing:
    """Neither a network nor an extractor."""
    return SEEN


def two_layers() -> nn.Module:
    """Two linear layers to choose between."""
    return nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.ReLU(), nn.Linear(192, 5))


def headless() -> nn.Module:
    """Features after a linear layer that is not a classifier."""
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.LayerNorm(8))


def failing() -> nn.Module:
    """Third-party code that fails."""
    raise ZeroDivisionError("division by zero")


class Misread(nn.Module):
    """A network that expects something other than a tensor."""

    def forward(self, image):
        return image.width


def pictures(counts, seed=0, noise=30.0, size=(12, 9)):
    """uint8 arrays of ``size``, ``counts[c]`` of class c, and labels; one pattern per class."""
    patterns = np.random.default_rng(99).uniform(40, 215, (len(counts), *size, 3))
    draw = np.random.default_rng(seed)
    images, labels = [], []
    for number, count in enumerate(counts):
        for _ in range(count):
            image = patterns[number] + noise * draw.standard_normal(patterns[number].shape)
            images.append(image.clip(0, 255).astype(np.uint8))
            labels.append(f"kind {number}")
    return images, labels

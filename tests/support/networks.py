"""Small networks that together use every feature of a convolution, and small models by name."""

from __future__ import annotations

from inspect import signature

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity.models import registry


class PlainCNN(nn.Module):
    """Four convolutions, BatchNorm, pooling and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Conv2d(6, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 10, (3, 5), padding=(1, 2)),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(10, 4)

    def forward(self, input: Tensor) -> Tensor:
        return self.classifier(self.features(input).mean((2, 3)))


class Bottleneck(nn.Module):
    """A residual block with strided, grouped, depthwise and dilated convolutions."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, groups=2, bias=False)
        self.depthwise = nn.Conv2d(width, width, 5, padding=4, dilation=2, groups=width)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width, 3, padding="same", padding_mode="circular")
        self.downsample = nn.Conv2d(channels, width, 1, stride)

    def forward(self, input: Tensor) -> Tensor:
        inner = F.relu(self.bn1(self.conv1(input)))
        inner = self.conv3(F.relu(self.bn2(self.depthwise(self.conv2(inner)))))
        return F.relu(inner + self.downsample(input))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 7, stride=2, padding=3)
        self.layer1 = Bottleneck(4, 6, stride=1)
        self.layer2 = Bottleneck(6, 8, stride=2)
        self.fc = nn.Linear(8, 4)

    def forward(self, input: Tensor) -> Tensor:
        return self.fc(self.layer2(self.layer1(self.stem(input))).mean((2, 3)))


class Sequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 4)

    def forward(self, input: Tensor) -> Tensor:
        return self.head(self.lstm(input)[0][:, -1])


class Volume(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv3d(2, 4, (3, 1, 3), padding=(1, 0, 1))
        self.up = nn.ConvTranspose3d(4, 3, 3, stride=2)
        self.head = nn.Linear(3, 4)

    def forward(self, input: Tensor) -> Tensor:
        return self.head(self.up(F.relu(self.conv(input))).mean((2, 3, 4)))


# name: (class, input shape, target_modules)
NETWORKS = {
    "plain": (PlainCNN, (5, 3, 12, 10), "all-conv"),
    "resnet": (ResNet, (5, 3, 24, 20), "all-conv"),
    "lstm": (Sequence, (5, 7, 6), ["lstm"]),
    "volume": (Volume, (5, 2, 5, 4, 6), "all-conv"),
}


def train_step(model: nn.Module, input: Tensor, learning_rate: float = 0.1) -> float:
    """One step of SGD on random labels; returns the loss."""
    optimiser = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=learning_rate
    )
    labels = torch.arange(len(input)) % 4
    loss = F.cross_entropy(model(input).float(), labels)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def small_options(name):
    """Options that make a network small, as far as the function that builds it accepts them."""
    defaults = {n: p.default for n, p in signature(registry._REGISTRY[name]).parameters.items()}
    small = {"width": 4} if "width" in defaults else {}
    if "widths" in defaults:
        small["widths"] = tuple(range(8, 8 + 2 * len(defaults["widths"]), 2))
    if defaults.get("hidden") is not None:
        small["hidden"] = 8
    if "head" in defaults:
        small |= {"head": 8, "depths": (1, 2) + (1,) * (len(defaults["depths"]) - 2)}
    return small


def small_side(name):
    """The side of a small image, odd, that the network accepts."""
    for side in (17, 33):
        try:
            ns.create_model(name, image_size=side, **small_options(name))
        except ns.ShapeError:
            continue
        return side
    raise AssertionError(f"{name} accepts no small image")


def small_model(name, similarity=None, num_classes=5, **options):
    """A small network from one seed, and images of two channels, in double precision.

    In training mode, where BatchNorm keeps the signal from fading away in untrained layers.
    """
    side = small_side(name)
    torch.manual_seed(0)
    sizes = {**small_options(name), **options}
    model = ns.create_model(name, num_classes, similarity, 2, side, **sizes).double()
    return model, torch.randn(8, 2, side, side, dtype=torch.float64)


def disturb_norms(model: nn.Module) -> None:
    """Give every BatchNorm parameters and statistics other than the initial ones."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.uniform_(norm.bias, 0.5, 1)
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 2)

"""Small networks that between them use every feature of a convolution, and small models by name."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neural_similarity as ns


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


# For each network: options that make it small, an odd image size, how many layers a similarity has.
SMALL_MODELS = {
    "cnn4": ({"width": 4}, 17, 4),
    "cnn9": ({"width": 4, "hidden": 8}, 9, 9),
    "cnn9_plus": ({"width": 4, "hidden": 8}, 9, 12),
    "cnn9_root": ({"width": 4}, 17, 9),
    "cnn9_wide": ({"widths": (4, 6, 8), "hidden": 8}, 9, 9),
    "cnn9_wide_attention": ({"widths": (8, 8, 8), "hidden": 8}, 9, 9),
    "cnn10": ({"width": 4, "hidden": 8}, 33, 9),
    "cnn10_plus": ({"width": 4, "hidden": 8}, 33, 10),
    **{
        f"efficientnet_lite{n}": (
            {"widths": (4, 4, 6, 6, 8, 8, 10), "depths": (1, 2, 1, 1, 1, 1, 1), "head": 8}, 33, 8,
        )
        for n in range(3)
    },
    "resnet18": ({"widths": (4, 4, 6, 8)}, 33, 16),
    "resnet_cifar": ({"widths": (4, 6, 8)}, 9, 19),
    "spherenet9": ({"widths": (4, 6, 8), "hidden": 8}, 9, 9),
    "spherenet9_attention": ({"widths": (8, 8, 8), "hidden": 8}, 9, 9),
}  # fmt: skip


def small_model(name, similarity=None, **options):
    """A small network from one seed, and images of two channels, in double precision.

    In training mode, where BatchNorm keeps the signal from fading away in untrained layers.
    """
    sizes, side, _ = SMALL_MODELS[name]
    torch.manual_seed(0)
    model = ns.create_model(name, 5, similarity, 2, side, **{**sizes, **options}).double()
    return model, torch.randn(8, 2, side, side, dtype=torch.float64)

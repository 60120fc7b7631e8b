"""The one list of structures, scopes, geometries and layers that properties are tested on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import neural_similarity as ns
from neural_similarity import structures
from neural_similarity.nn.inventory import named_similarities
from neural_similarity.structures import Block, Structure

PATCH_PREDICTORS = {
    "sphere": ns.SpherePredictor(hidden=4),
    "sphere-norm": ns.SpherePredictor(hidden=4, batch_norm=True),
    "sphere-plain": ns.SpherePredictor(hidden=4, batch_norm=False),
    "full sphere": ns.SpherePredictor(hidden=4, normalize="both"),
    "full sphere-plain": ns.SpherePredictor(hidden=4, normalize="both", batch_norm=False),
    "conv": ns.ConvPredictor(hidden=4, output="none"),
    "conv-normalized": ns.ConvPredictor(hidden=4),
    "conv-sigmoid": ns.ConvPredictor(hidden=4, output="sigmoid"),
}
PREDICTORS = {
    **PATCH_PREDICTORS,
    "pixel": ns.PixelPredictor(hidden=4),
    "pixel-pool": ns.PixelPredictor(hidden=4, pool=3),
    "pixel-norm": ns.PixelPredictor(hidden=4, gate="none", batch_norm=True),
    "image": ns.ImagePredictor(hidden=4, gate="tanh"),
    "image-norm": ns.ImagePredictor(hidden=4, batch_norm=True),
    "pair": ns.PairPredictor(channels=4),
    "pair-gaussian": ns.PairPredictor(channels=None, kernel="gaussian", softmax=True),
}
SMALL = PREDICTORS["sphere"]

SCOPES = ("layer", "channel", "kernel", "full")

STRUCTURES: dict[str, Structure] = {
    **{name: structures.resolve(name) for name in structures.list_structures()},
    "sparse-tight": structures.Sparse(keep=0.35),
    "kernel_shape-continuous": structures.KernelShape("unconstrained", boolean=False),
    "kernel_shape-psd": structures.KernelShape("psd", threshold=0.8),
    "kernel_shape-orthogonal": structures.KernelShape(structures.Orthogonal()),
}
STARTS_AT_IDENTITY = sorted(
    name for name, structure in STRUCTURES.items() if structure.starts_at_identity(Block((3, 3)))
)


@dataclass(frozen=True)
class Geometry:
    """Sizes that differ wherever they can, so that a swapped axis cannot hide."""

    batch: int
    channels: int
    kernels: int
    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def positions(self) -> tuple[int, int]:
        return tuple(
            (i + 2 * p - d * (k - 1) - 1) // s + 1
            for i, k, s, p, d in zip(
                self.image, self.kernel, self.stride, self.padding, self.dilation, strict=True
            )
        )

    @property
    def options(self) -> dict[str, Any]:
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    def input(self, **kwargs: Any) -> Tensor:
        return torch.randn(self.batch, self.channels, *self.image, **kwargs)

    def weight(self, **kwargs: Any) -> Tensor:
        return torch.randn(self.kernels, self.channels // self.groups, *self.kernel, **kwargs)

    def conv(self, **kwargs: Any) -> nn.Conv2d:
        return nn.Conv2d(self.channels, self.kernels, self.kernel, **self.options, **kwargs)


GEOMETRIES = {
    "plain": Geometry(2, 4, 5, (8, 7), (3, 1)),
    "padded": Geometry(2, 4, 5, (6, 7), (3, 5), padding=(1, 3)),
    "strided": Geometry(2, 3, 4, (10, 13), (5, 3), stride=(2, 3), padding=(2, 0)),
    "dilated": Geometry(2, 3, 5, (9, 11), (3, 5), padding=(1, 2), dilation=(3, 2)),
    "grouped": Geometry(2, 6, 4, (7, 8), (5, 3), stride=(1, 2), padding=(3, 1), groups=2),
    "depthwise": Geometry(3, 4, 8, (6, 5), (3, 1), padding=(2, 0), dilation=(2, 1), groups=4),
}
EVEN = {
    "even": Geometry(3, 4, 6, (7, 9), (2, 4), stride=(3, 1), padding=(1, 2), groups=2),
    "one-tap": Geometry(2, 3, 4, (6, 5), (1, 1), stride=(2, 1)),
}


@dataclass(frozen=True)
class Kind:
    """A shape of M that the operation accepts."""

    axes: str  # "position", "image", "row" or "column": what has its own M; "" for static
    matrix: bool = False
    grouped: bool = False  # each group of channels has its own diagonal

    def groups(self, geometry: Geometry) -> int:
        """More than one and, if possible, fewer than the channels."""
        if not self.grouped:
            return 1
        return next(s for s in range(2, geometry.channels + 1) if geometry.channels % s == 0)

    def shape(self, geometry: Geometry, batch: int | None = None) -> tuple[int, ...]:
        K, (P, Q) = geometry.taps, geometry.positions
        taps = (K, K) if self.matrix else (self.groups(geometry) * K,)
        if not self.axes:
            return taps
        map_size = {"position": (P, Q), "image": (1, 1), "row": (P, 1), "column": (1, Q)}
        return (geometry.batch if batch is None else batch, *taps, *map_size[self.axes])


KINDS = {
    "diagonal": Kind(""),
    "matrix": Kind("", matrix=True),
    "diagonal per position": Kind("position"),
    "matrix per position": Kind("position", matrix=True),
    "diagonal per image": Kind("image"),
    "matrix per image": Kind("image", matrix=True),
    "diagonal per column": Kind("column"),
    "matrix per row": Kind("row", matrix=True),
    "diagonal per group and position": Kind("position", grouped=True),
    "diagonal per group and image": Kind("image", grouped=True),
}
DYNAMIC = tuple(name for name, kind in KINDS.items() if kind.axes)


def similarity(name: str, geometry: Geometry, batch: int | None = None, **kwargs: Any) -> Tensor:
    """A random M of one of the shapes the operation accepts: asymmetric, not the identity."""
    return torch.randn(KINDS[name].shape(geometry, batch), **kwargs)


def random_numbers(structure: Structure, block: Block, *leading: int) -> dict[str, Tensor]:
    """Numbers behind M, away from the start, in double precision."""
    return {
        name: start.double() + torch.randn(*leading, *start.shape, dtype=torch.float64)
        for name, start in structure.initial(block).items()
    }


def layers() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Every kind of layer that takes a similarity, with an input shape that fits it."""
    return {
        "conv1d": (nn.Conv1d(4, 6, 5, stride=2, groups=2), (2, 4, 11)),
        "conv2d": (nn.Conv2d(4, 6, (5, 3), padding=(1, 2), dilation=(1, 2)), (2, 4, 9, 8)),
        "conv2d-same": (nn.Conv2d(4, 6, (5, 3), padding="same", bias=False), (2, 4, 9, 8)),
        "conv2d-reflect": (
            nn.Conv2d(4, 6, (5, 3), padding=(2, 1), padding_mode="reflect"),
            (2, 4, 9, 8),
        ),
        "conv2d-depthwise": (nn.Conv2d(4, 8, 3, padding=1, groups=4), (2, 4, 9, 7)),
        "conv3d": (nn.Conv3d(2, 4, (3, 5, 1), stride=(1, 2, 1), groups=2), (2, 2, 5, 8, 3)),
        "conv_transpose2d": (
            nn.ConvTranspose2d(4, 6, (5, 3), stride=(2, 1), padding=1, groups=2),
            (2, 4, 5, 7),
        ),
        "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 5)),
        "linear": (nn.Linear(9, 5), (3, 9)),
        "rnn": (nn.RNN(5, 7), (4, 2, 5)),
        "gru": (nn.GRU(5, 7, num_layers=2, batch_first=True), (2, 4, 5)),
        "lstm": (nn.LSTM(5, 7, num_layers=2, dropout=0.5, proj_size=3), (4, 2, 5)),
        "lstm_cell": (nn.LSTMCell(5, 7), (2, 5)),
    }


LAYERS = tuple(layers())


def half(*axes: Iterable[str]) -> list[tuple[str, ...]]:
    """Half of the product of three or more axes, in which any two values still occur together."""
    numbered = itertools.product(*(enumerate(axis) for axis in axes))
    return [
        tuple(value for _, value in case)
        for case in numbered
        if sum(place for place, _ in case) % 2 == 0
    ]


def output(module: nn.Module, input: Tensor) -> Tensor:
    """The first tensor a layer returns: recurrent ones return several."""
    result = module(input)
    while not isinstance(result, Tensor):
        result = result[0]
    return result


def relative_difference(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


def disturb(model: nn.Module) -> None:
    """Move every similarity away from the identity, as training would."""
    with torch.no_grad():
        for _, similarity in named_similarities(model):
            for name, parameter in similarity.named_parameters():
                scale = 3.0 if "score" in name else 0.3  # a choice flips only when scores cross
                parameter.add_(torch.randn_like(parameter), alpha=scale)

"""The layers of ``nn.family`` as their papers define them, in Python loops over plain numbers.

Slow on purpose and independent of the library: no unfold, no convolution, no broadcasting. Each
function takes a layer, for its parameters and settings, and the layer's inputs.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor


class Image:
    """One sample, ``(C, H, W)``: zero outside."""

    def __init__(self, tensor: Tensor) -> None:
        self.channels, self.height, self.width = tensor.shape
        self.values = tensor.tolist()

    def inside(self, y: int, x: int) -> bool:
        return 0 <= y < self.height and 0 <= x < self.width

    def pixel(self, y: int, x: int) -> list[float]:
        return [self.values[c][y][x] if self.inside(y, x) else 0.0 for c in range(self.channels)]

    def mean(self) -> list[float]:
        size = self.height * self.width
        return [sum(map(sum, rows)) / size for rows in self.values]


class Geometry:
    """Output positions of a layer with these settings, and the input position under each tap."""

    def __init__(self, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.taps = list(product(range(kernel[0]), range(kernel[1])))

    def size(self, image: Image) -> tuple[int, int]:
        sides = (image.height, image.width)
        return tuple(
            (sides[a] + 2 * self.padding[a] - self.dilation[a] * (self.kernel[a] - 1) - 1)
            // self.stride[a]
            + 1
            for a in range(2)
        )

    def place(self, p: int, q: int, tap: tuple[int, int]) -> tuple[int, int]:
        return (
            p * self.stride[0] - self.padding[0] + tap[0] * self.dilation[0],
            q * self.stride[1] - self.padding[1] + tap[1] * self.dilation[1],
        )

    def centre(self, p: int, q: int) -> tuple[int, int]:
        return self.place(p, q, (self.kernel[0] // 2, self.kernel[1] // 2))


def geometry_of(layer: Any) -> Geometry:
    settings = getattr(layer, "windows", layer)
    return Geometry(settings.kernel_size, settings.stride, settings.padding, settings.dilation)


def linear(layer: Any, vector: list[float]) -> list[float]:
    """A 1×1 convolution at one pixel."""
    rows = layer.weight.flatten(1).tolist()
    bias = [0.0] * len(rows) if layer.bias is None else layer.bias.tolist()
    products = [sum(w * v for w, v in zip(row, vector, strict=True)) for row in rows]
    return [b + value for b, value in zip(bias, products, strict=True)]


def normalised(norm: Any, vector: list[float]) -> list[float]:
    """Batch normalisation with its running statistics."""
    statistics = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    columns = zip(vector, *(s.tolist() for s in statistics), strict=True)
    return [(v - mean) / math.sqrt(var + norm.eps) * w + b for v, mean, var, w, b in columns]


def relu(vector: list[float]) -> list[float]:
    return [max(0.0, v) for v in vector]


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def squared_distance(one: list[float], other: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def every_position(input: Tensor, geometry: Geometry, at: Any) -> Tensor:
    """``at(n, image, p, q)`` gives the output channels there."""
    samples = []
    for n, sample in enumerate(input):
        image = Image(sample)
        P, Q = geometry.size(image)
        rows = [[at(n, image, p, q) for q in range(Q)] for p in range(P)]
        samples.append(torch.tensor(rows, dtype=torch.float64).permute(2, 0, 1))
    return torch.stack(samples)


def convolution(layer: Any, image: Image, p: int, q: int, factor: Any) -> list[float]:
    """``Σ W[o,c,i] · factor(c, i) · X[c,i]``, with c counted over all groups."""
    geometry, outputs = geometry_of(layer), []
    seen, per_group = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    weight = layer.weight.tolist()
    patch = [image.pixel(*geometry.place(p, q, tap)) for tap in geometry.taps]
    for o in range(layer.out_channels):
        value = 0.0 if layer.bias is None else layer.bias[o].item()
        for c in range(seen):
            channel = o // per_group * seen + c
            for i, (a, b) in enumerate(geometry.taps):
                value += weight[o][c][a][b] * factor(channel, i) * patch[i][channel]
        outputs.append(value)
    return outputs


def involution(layer: Any, input: Tensor) -> Tensor:
    geometry, K = geometry_of(layer), len(geometry_of(layer).taps)
    rows, columns = geometry.stride

    def at(n, image, p, q):
        ys = range(p * rows, min((p + 1) * rows, image.height))
        xs = range(q * columns, min((q + 1) * columns, image.width))
        pooled = [
            sum(image.values[c][y][x] for y in ys for x in xs) / (len(ys) * len(xs))
            for c in range(image.channels)
        ]
        hidden = relu(normalised(layer.norm, linear(layer.reduce, pooled)))
        kernels = linear(layer.span, hidden)
        per_group = image.channels // layer.groups
        patch = [image.pixel(*geometry.place(p, q, tap)) for tap in geometry.taps]
        return [
            sum(kernels[c // per_group * K + i] * patch[i][c] for i in range(K))
            for c in range(image.channels)
        ]

    return every_position(input, geometry, at)


def local_attention(layer: Any, input: Tensor) -> Tensor:
    geometry, heads = geometry_of(layer), layer.heads
    row_embeddings, column_embeddings = layer.rows.tolist(), layer.columns.tolist()

    def at(n, image, p, q):
        query = linear(layer.query, image.pixel(*geometry.centre(p, q)))
        width, output = len(query) // heads, []
        zero = [0.0] * len(query)
        places = [geometry.place(p, q, tap) for tap in geometry.taps]
        keys = [linear(layer.key, image.pixel(*l)) if image.inside(*l) else zero for l in places]
        values = [
            linear(layer.value, image.pixel(*l)) if image.inside(*l) else zero for l in places
        ]
        for head in range(heads):
            scores = []
            for i, (a, b) in enumerate(geometry.taps):
                score = 0.0
                for d in range(width):
                    if d < width // 2:
                        relative = row_embeddings[head][d][a]
                    else:
                        relative = column_embeddings[head][d - width // 2][b]
                    c = head * width + d
                    score += query[c] * (keys[i][c] + relative)
                scores.append(score)
            exponentials = [math.exp(score) for score in scores]
            for c in range(head * width, (head + 1) * width):
                weighted = sum(e * v[c] for e, v in zip(exponentials, values, strict=True))
                output.append(weighted / sum(exponentials))
        return output

    return every_position(input, geometry, at)


def pixel_adaptive(layer: Any, input: Tensor, guide: Tensor) -> Tensor:
    geometry, guides = geometry_of(layer), [Image(sample) for sample in guide]

    def at(n, image, p, q):
        f = guides[n]
        places = [geometry.place(p, q, tap) for tap in geometry.taps]
        centre = f.pixel(*geometry.centre(p, q))
        near = [math.exp(-squared_distance(centre, f.pixel(*l)) / 2) for l in places]
        if layer.normalize_kernel:
            total = sum(k for k, l in zip(near, places, strict=True) if f.inside(*l))
            near = [k / total for k in near]
        return convolution(layer, image, p, q, lambda c, i: near[i])

    return every_position(input, geometry, at)


def modulated(layer: Any, input: Tensor) -> Tensor:
    geometry, K = geometry_of(layer), len(geometry_of(layer).taps)
    per_group = layer.in_channels // layer.deform_groups

    def at(n, image, p, q):
        scores = convolution(layer.mask, image, p, q, lambda c, i: 1.0)
        mask = [sigmoid(score) for score in scores]
        return convolution(layer, image, p, q, lambda c, i: mask[c // per_group * K + i])

    return every_position(input, geometry, at)


def squeeze_excite(layer: Any, input: Tensor) -> Tensor:
    def at(n, image, p, q):
        gate = [sigmoid(v) for v in linear(layer.excite, relu(linear(layer.squeeze, image.mean())))]
        return convolution(layer, image, p, q, lambda c, i: gate[c])

    return every_position(input, geometry_of(layer), at)


def spatial_attention(layer: Any, input: Tensor) -> Tensor:
    def at(n, image, p, q):
        hidden = relu(normalised(layer.norm, linear(layer.reduce, image.mean())))
        T = layer.temperature
        channels = [sigmoid(v / T) for v in linear(layer.channel, hidden)]
        taps = [1.0]
        if layer.spatial is not None:
            taps = [sigmoid(v / T) for v in linear(layer.spatial, hidden)]
        return convolution(layer, image, p, q, lambda c, i: channels[c] * taps[i])

    return every_position(input, geometry_of(layer), at)


def bilateral(layer: Any, input: Tensor, guide: Tensor | None = None) -> Tensor:
    guides = [Image(sample) for sample in (input if guide is None else guide)]
    high, wide = layer.windows.kernel_size[0] // 2, layer.windows.kernel_size[1] // 2

    def at(n, image, p, q):
        top, bottom, total = [0.0] * image.channels, 0.0, 0
        for dy, dx in product(range(-high, high + 1), range(-wide, wide + 1)):
            if not image.inside(p + dy, q + dx):
                continue
            colours = squared_distance(guides[n].pixel(p, q), guides[n].pixel(p + dy, q + dx))
            space = dy**2 + dx**2
            near = math.exp(-colours / (2 * layer.sigma_colour**2))
            near *= math.exp(-space / (2 * layer.sigma_space**2))
            bottom, total = bottom + near, total + 1
            top = [t + near * v for t, v in zip(top, image.pixel(p + dy, q + dx), strict=True)]
        assert total > 0
        return [t / bottom for t in top]

    return every_position(input, Geometry((1, 1), (1, 1), (0, 0), (1, 1)), at)


def sampling_matrix(grid: Tensor, size: tuple[int, int]) -> Tensor:
    """What a bilinear sampler with zeros outside does, as an L × L matrix: loops and weights."""
    H, W = size
    M = torch.zeros(len(grid), H * W, H * W, dtype=torch.float64)
    for n in range(len(grid)):
        for i, (x, y) in enumerate(grid[n].reshape(-1, 2).tolist()):
            column, row = ((x + 1) * W - 1) / 2, ((y + 1) * H - 1) / 2
            for r in range(H):
                for c in range(W):
                    near = max(0.0, 1 - abs(row - r)) * max(0.0, 1 - abs(column - c))
                    M[n, i, r * W + c] = near
    return M


def affine_grid(theta: Tensor, size: tuple[int, int]) -> Tensor:
    """Where each position is read: (x, y) = θ (x', y', 1), with −1 and 1 at the image's edges."""
    H, W = size
    grids = []
    for (a, b, c), (d, e, f) in theta.tolist():
        places = []
        for row, column in product(range(H), range(W)):
            x, y = (2 * column + 1) / W - 1, (2 * row + 1) / H - 1
            places.append((a * x + b * y + c, d * x + e * y + f))
        grids.append(places)
    return torch.tensor(grids, dtype=torch.float64).reshape(len(theta), H, W, 2)


def spatial_transformer(layer: Any, input: Tensor) -> Tensor:
    N, _, H, W = input.shape
    theta = layer.localisation(input).reshape(N, 2, 3)
    M = sampling_matrix(affine_grid(theta, (H, W)), (H, W))
    output = torch.zeros_like(input)
    for n, c in product(range(N), range(input.shape[1])):
        x = input[n, c].flatten()
        output[n, c] = torch.stack([M[n, l] @ x for l in range(H * W)]).reshape(H, W)
    return output

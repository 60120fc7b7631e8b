"""Plots of M: what a static similarity has learned, what a dynamic one predicts for an image.

Colour is the difference from the identity: white as in a plain convolution, red above, blue below.
Rows of a matrix are kernel taps, columns are patch taps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from matplotlib.axes import Axes
from torch import Tensor, nn

from ..convert.describe import (
    difference_from_identity,
    distance_from_identity,
    predicted_similarities,
)
from ..errors import AttachError, ShapeError
from ..nn.dynamic import PredictedSimilarity
from ..nn.inventory import named_similarities
from ..nn.static import SimilarityParametrization
from ..structures import Block
from .style import figure, save
from .tiles import as_kernel, draw_difference, draw_distance, draw_image, draw_shape, short_name

__all__ = ["draw_dynamic", "draw_static"]

_MOST_TILES, _MOST_LAYERS = 120, 12
_ENTRIES = 3  # entries of each layer's M drawn over the image


def draw_static(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Draw the learned M of every static layer, as PNG, all layers on one scale.

    A diagonal is drawn in the shape of the kernel, with the gain of each tap; a matrix as a matrix;
    a kernel shape D next to its M, grey where a tap counts. If a layer has many M, their mean is
    drawn.
    """
    tiles = [
        tile
        for name, similarity in named_similarities(model)
        if isinstance(similarity, SimilarityParametrization)
        for tile in _static_tiles(name.removesuffix(".weight"), similarity)
    ]
    if not tiles:
        raise AttachError(
            "draw_static: expected a model with static similarities, got one without. Attach one "
            "first. After merge, a model has none."
        )
    title = "Learned similarity M: difference from the identity"
    if len(tiles) > _MOST_TILES:
        title += f" (the first {_MOST_TILES} of {len(tiles)} maps)"
        tiles = tiles[:_MOST_TILES]
    limit = max(tile.values.abs().max().item() for tile in tiles if not tile.is_shape)
    has_shapes = any(tile.is_shape for tile in tiles)
    columns = 6 if has_shapes else min(5, max(len(tiles), 3))  # a shape stays next to its M
    rows = ceil(len(tiles) / columns)
    with figure(1.8 * columns + 0.8, 2.1 * rows + 0.5, title) as drawing:
        panels = list(drawing.subplots(rows, columns, squeeze=False).flat)
        for panel, tile in zip(panels, tiles, strict=False):
            if tile.is_shape:
                draw_shape(panel, tile.values, tile.title)
            else:
                image = draw_difference(panel, tile.values, limit, tile.title, tile.is_diagonal)
            if not (tile.is_shape or tile.is_diagonal):
                panel.set(xlabel="patch tap", ylabel="kernel tap")
        for panel in panels[len(tiles) :]:
            panel.set_axis_off()
        drawing.colorbar(image, ax=panels, label="M − I", shrink=min(1.0, 1.5 / rows), aspect=15)
        save(drawing, path)


def draw_dynamic(model: nn.Module, image: Tensor, path: str | os.PathLike[str]) -> None:
    """Draw the M that every dynamic layer predicts for one image, as PNG; one row per layer.

    A row shows the mean of M over the image, a kernel shape D if there is one, how far M is from
    the identity at each position, and the entries of M that vary most over the image. If groups of
    channels or kernels have their own M, their mean is drawn, and the distance is the root mean
    square of theirs. Over channels, M is a gate per group, and gates take the place of entries. One
    M per image has no positions.

    Args:
        model: a model with dynamic layers. Its mode is not changed: call ``eval()`` first.
        image: ``(C, H, W)``, normalised as for the model.
        path: the PNG file.
    """
    if image.dim() != 3:
        raise ShapeError(
            f"draw_dynamic: expected one image of shape (C, H, W), got {tuple(image.shape)}."
        )
    predictors = {n: s for n, s in named_similarities(model) if isinstance(s, PredictedSimilarity)}
    predicted = {
        name: (predictors[name], M[0].float().cpu())
        for name, M in predicted_similarities(model, image[None]).items()
        if name in predictors
    }
    if not predicted:
        raise AttachError(
            "draw_dynamic: expected a model with dynamic similarities, got one without. Use "
            "draw_static for static ones."
        )
    names = _spread(list(predicted), _MOST_LAYERS)
    note = "" if len(names) == len(predicted) else f", {len(names)} of {len(predicted)} layers"
    has_shapes = any(predicted[name][0].kernel_shape() is not None for name in names)
    columns = 2 + has_shapes + _ENTRIES
    height = 2.0 * (len(names) + 1)
    title = f"Predicted similarity M for one image{note}"
    with figure(1.7 * columns + 0.8, height + 0.5, title) as drawing:
        grid = drawing.subplots(len(names) + 1, columns, squeeze=False)
        draw_image(grid[0][0], image.detach().float().cpu(), "image")
        for panel in grid[0][1:]:
            panel.set_axis_off()
        text = grid[0][1].text(0, 1, _HOW_TO_READ, va="top", fontsize=8, linespacing=1.5)
        text.set_in_layout(False)  # it extends over the empty panels next to it
        for panels, name in zip(grid[1:], names, strict=True):
            _draw_layer(list(panels), short_name(name.removesuffix(".predictor")), *predicted[name])
        save(drawing, path)


_HOW_TO_READ = (
    "One row per layer. Colour is M − I: white as in a plain convolution,\n"
    "red more, blue less. Grey is the distance of M from the identity,\n"
    "‖M − I‖ / ‖I‖. The last maps are the entries of M that vary most:\n"
    "“tap 1,3” weights the first row, third column of the kernel;\n"
    "“1,3 ← 2,2” lets that tap read the patch's second row and column;\n"
    "“gate 5” weights the fifth channel, or group of channels."
)


@dataclass(frozen=True)
class _Tile:
    """One map to draw."""

    title: str
    values: Tensor
    is_diagonal: bool = False
    is_shape: bool = False


def _static_tiles(name: str, similarity: SimilarityParametrization) -> Iterator[_Tile]:
    M = similarity.similarity().detach().float().cpu()
    structure, block, diagonal = similarity.structure, similarity.block, similarity.is_diagonal
    mean = M.flatten(0, len(similarity.leading) - 1).mean(0) if similarity.leading else M
    note = f", mean of {M.numel() // mean.numel()}" if similarity.leading else ""
    name = short_name(name)
    difference = _laid_out(difference_from_identity(mean, diagonal), diagonal, block)
    yield _Tile(f"{name}\n{structure.name}{note}", difference, is_diagonal=diagonal)
    if (D := similarity.kernel_shape()) is not None:
        mean = D.detach().float().cpu().reshape(-1, block.size).mean(0)
        yield _Tile(f"{name}\nshape D", as_kernel(mean, block), is_shape=True)


def _draw_layer(panels: list[Axes], name: str, similarity: PredictedSimilarity, M: Tensor) -> None:
    """Draw one row; ``M`` is ``(P, Q, [diagonals,] K)`` or ``(P, Q, K, K)``, or without P and Q."""
    diagonal, block = similarity.is_diagonal, similarity.block
    if M.shape[:2] == (1, 1) and M.dim() > 2:  # one M per image
        M = M[0, 0]
    distance = distance_from_identity(M, diagonal)
    count, gates = similarity.diagonals, similarity.span.over == "channels"
    if count > 1:
        # Of the mean of M, the distance would be too small: differences of channels cancel out.
        distance = distance.square().mean(-1).sqrt()
    if gates:  # they weight all taps of a channel alike
        M, name = (M[..., 0] if count > 1 else M[..., :1]), f"{name}, gates: {count}"
    elif count > 1:
        M, name = M.mean(-2), f"{name}, mean of {count}"
    taps = 1 if diagonal else 2
    difference = difference_from_identity(M, diagonal)
    has_positions = difference.dim() > taps
    entries = difference.flatten(-taps)
    mean = difference.flatten(0, -taps - 1).mean(0) if has_positions else difference
    change = entries.reshape(-1, entries.shape[-1]).var(0, correction=0)
    largest = change.topk(min(_ENTRIES, len(change))).indices.tolist()
    limit = max(mean.abs().max().item(), entries[..., largest].abs().max().item())
    laid_out = mean[None] if gates else _laid_out(mean, diagonal, block)
    heat_map = draw_difference(panels[0], laid_out, limit, f"{name}\nmean of M", diagonal)
    unused = panels[1:]
    if (D := similarity.kernel_shape()) is not None:
        draw_shape(unused.pop(0), as_kernel(D.detach().float().cpu(), block), "shape D")
    if has_positions:
        span = f"{distance.min():.2g} to {distance.max():.2g}"
        draw_distance(unused.pop(0), distance, f"distance\n{span}")
        for entry in largest:
            label = f"gate {entry + 1}" if gates else _entry_name(entry, diagonal, block)
            draw_difference(unused.pop(0), entries[..., entry], limit, label)
    for panel in unused:
        panel.set_axis_off()
    panels[0].figure.colorbar(heat_map, ax=panels, label="M − I", aspect=12, shrink=0.8)


def _laid_out(mean: Tensor, diagonal: bool, block: Block) -> Tensor:
    return as_kernel(mean, block) if diagonal else mean


def _entry_name(entry: int, diagonal: bool, block: Block) -> str:
    def tap(number: int) -> str:
        row, column = divmod(number, block.taps[-1])
        return f"{row + 1},{column + 1}" if len(block.taps) > 1 else f"{column + 1}"

    if diagonal:
        return f"tap {tap(entry)}"
    return f"{tap(entry // block.size)} ← {tap(entry % block.size)}"


def _spread(names: Sequence[str], most: int) -> list[str]:
    """At most ``most`` of the names, evenly spaced from first to last."""
    if len(names) <= most:
        return list(names)
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]

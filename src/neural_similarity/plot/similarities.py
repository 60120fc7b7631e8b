"""Pictures of M: what a static similarity has learned, what a dynamic one makes of an image.

Colour is the difference from the identity: white is what a plain convolution does, red more, blue
less. Rows of a matrix are kernel taps, columns are patch taps.
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
from ..nn.inventory import named_similarities
from ..nn.predicted import PredictedSimilarity
from ..nn.static import SimilarityParametrization
from ..structures import Block
from .style import figure, save
from .tiles import as_kernel, draw_difference, draw_distance, draw_image, draw_shape, short_name

__all__ = ["draw_dynamic", "draw_static"]

_MOST_TILES, _MOST_LAYERS = 120, 12
_ENTRIES = 3  # of each layer's M that are drawn over the image


def draw_static(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Draw the learned M of every static layer, as PNG, all layers on one scale.

    A diagonal is drawn as the kernel, with the gain of each tap; a matrix as a matrix; a kernel
    shape D beside its M, grey where a tap counts. Of a scope with many M the mean is drawn.
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
            "first; after merge none is left."
        )
    shown = tiles[:_MOST_TILES]
    limit = max(tile.values.abs().max().item() for tile in shown if not tile.is_shape)
    title = "Learned similarity M, as difference from the identity"
    if len(shown) < len(tiles):
        title += f" (the first {len(shown)} of {len(tiles)} maps)"
    has_shapes = any(tile.is_shape for tile in shown)
    columns = 6 if has_shapes else min(5, max(len(shown), 3))  # a shape stays beside its M
    rows = ceil(len(shown) / columns)
    with figure(1.8 * columns + 0.8, 2.1 * rows + 0.5, title) as made:
        panels = list(made.subplots(rows, columns, squeeze=False).flat)
        for panel, tile in zip(panels, shown, strict=False):
            if tile.is_shape:
                draw_shape(panel, tile.values, tile.title)
            else:
                drawn = draw_difference(panel, tile.values, limit, tile.title, tile.is_diagonal)
            if not (tile.is_shape or tile.is_diagonal):
                panel.set(xlabel="patch tap", ylabel="kernel tap")
        for panel in panels[len(shown) :]:
            panel.set_axis_off()
        made.colorbar(drawn, ax=panels, label="M − I", shrink=min(1.0, 1.5 / rows), aspect=15)
        save(made, path)


def draw_dynamic(model: nn.Module, image: Tensor, path: str | os.PathLike[str]) -> None:
    """Draw the M that every dynamic layer predicts over one image, as PNG; a row a layer.

    A row shows the mean of M over the image, a kernel shape D if there is one, how far M is from
    the identity at each position, and the entries of M that change most over the image.

    Args:
        model: with dynamic layers; it is run as it is, so put it into evaluation mode.
        image: ``(C, H, W)`` as the model takes it.
        path: the picture.
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
            "draw_dynamic: expected a model with dynamic similarities, got one without. For static "
            "ones there is draw_static."
        )
    shown = _spread(list(predicted), _MOST_LAYERS)
    some = "" if len(shown) == len(predicted) else f", {len(shown)} of {len(predicted)} layers"
    shaped = any(predicted[name][0].outer is not None for name in shown)
    columns = 2 + shaped + _ENTRIES
    height = 2.0 * (len(shown) + 1)
    title = f"Predicted similarity M over an image{some}"
    with figure(1.7 * columns + 0.8, height + 0.5, title) as made:
        grid = made.subplots(len(shown) + 1, columns, squeeze=False)
        draw_image(grid[0][0], image.detach().float().cpu(), "image")
        for panel in grid[0][1:]:
            panel.set_axis_off()
        words = grid[0][1].text(0, 1, _HOW_TO_READ, va="top", fontsize=8, linespacing=1.5)
        words.set_in_layout(False)  # it runs over the empty panels beside it
        for panels, name in zip(grid[1:], shown, strict=True):
            _draw_layer(list(panels), short_name(name.removesuffix(".predictor")), *predicted[name])
        save(made, path)


_HOW_TO_READ = (
    "One row a layer. Colour is M − I: white as in a plain convolution,\n"
    "red more, blue less. Grey is how far M is from the identity,\n"
    "‖M − I‖ / ‖I‖. Then the entries of M that change most over the image:\n"
    "“tap 1,3” weights the first row, third column of the kernel;\n"
    "“1,3 ← 2,2” lets that tap see the patch's second row and column."
)


@dataclass(frozen=True)
class _Tile:
    """A map to draw."""

    title: str
    values: Tensor
    is_diagonal: bool = False
    is_shape: bool = False


def _static_tiles(name: str, similarity: SimilarityParametrization) -> Iterator[_Tile]:
    M = similarity.similarity().detach().float().cpu()
    structure, block, diagonal = similarity.structure, similarity.block, similarity.is_diagonal
    mean = M.flatten(0, len(similarity.leading) - 1).mean(0) if similarity.leading else M
    many = f", mean of {M.numel() // mean.numel()}" if similarity.leading else ""
    name = short_name(name)
    difference = _laid_out(difference_from_identity(mean, diagonal), diagonal, block)
    yield _Tile(f"{name}\n{structure.name}{many}", difference, is_diagonal=diagonal)
    if (D := similarity.kernel_shape()) is not None:
        mean = D.detach().float().cpu().reshape(-1, block.size).mean(0)
        yield _Tile(f"{name}\nshape D", as_kernel(mean, block), is_shape=True)


def _draw_layer(panels: list[Axes], name: str, similarity: PredictedSimilarity, M: Tensor) -> None:
    """A row: ``M`` is ``(P, Q, K)`` or ``(P, Q, K, K)``, or without positions."""
    diagonal, block = similarity.is_diagonal, similarity.block
    taps = 1 if diagonal else 2
    difference = difference_from_identity(M, diagonal)
    has_positions = difference.dim() > taps
    entries = difference.flatten(-taps)
    mean = difference.flatten(0, -taps - 1).mean(0) if has_positions else difference
    change = entries.reshape(-1, entries.shape[-1]).var(0, correction=0)
    changing = change.topk(min(_ENTRIES, len(change))).indices.tolist()
    limit = max(mean.abs().max().item(), entries[..., changing].abs().max().item())
    drawn = draw_difference(
        panels[0], _laid_out(mean, diagonal, block), limit, f"{name}\nmean of M", diagonal
    )
    free = panels[1:]
    if (D := similarity.kernel_shape()) is not None:
        draw_shape(free.pop(0), as_kernel(D.detach().float().cpu(), block), "shape D")
    if has_positions:
        distance = distance_from_identity(M, diagonal)
        span = f"{distance.min():.2g} to {distance.max():.2g}"
        draw_distance(free.pop(0), distance, f"distance\n{span}")
        for entry in changing:
            label = _entry_name(entry, diagonal, block)
            draw_difference(free.pop(0), entries[..., entry], limit, label)
    for panel in free:
        panel.set_axis_off()
    panels[0].figure.colorbar(drawn, ax=panels, label="M − I", aspect=12, shrink=0.8)


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
    """At most so many of the names, from first to last."""
    if len(names) <= most:
        return list(names)
    return [names[round(i * (len(names) - 1) / (most - 1))] for i in range(most)]

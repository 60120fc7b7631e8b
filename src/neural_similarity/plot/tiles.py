"""The small maps that pictures of similarities are made of."""

from __future__ import annotations

from math import prod
from typing import Any

from matplotlib.axes import Axes
from torch import Tensor

from ..structures import Block
from .style import DIVERGING, GREY

__all__ = [
    "as_kernel",
    "draw_difference",
    "draw_distance",
    "draw_image",
    "draw_shape",
    "short_name",
]

_MOST_WRITTEN = 25  # cells, above which numbers no longer fit
_LEAST_LIMIT = 1e-6  # at the identity a map is white, not the colours of rounding
_LONG = 4  # sides whose ratio is above this are stretched, or one would be a line


def draw_difference(
    axes: Axes, difference: Tensor, limit: float, title: str, gains: bool = False
) -> Any:
    """M − I in colour, from −limit to limit; ``gains`` writes each tap's gain into its cell."""
    limit = max(limit, _LEAST_LIMIT)
    drawn = _show(axes, difference, title, cmap=DIVERGING, vmin=-limit, vmax=limit)
    if gains and difference.numel() <= _MOST_WRITTEN:
        for row, values in enumerate(difference.tolist()):
            for column, value in enumerate(values):
                colour = "white" if abs(value) > 0.65 * limit else "black"
                axes.text(
                    column, row, f"{1 + value:.2f}", color=colour, ha="center", va="center",
                    fontsize=7,
                )  # fmt: skip
    return drawn


def draw_distance(axes: Axes, values: Tensor, title: str) -> None:
    """Numbers from 0 (white) to the highest (black)."""
    highest = max(values.max().item(), _LEAST_LIMIT)
    _show(axes, values, title, cmap="Greys", vmin=0.0, vmax=highest)


def draw_shape(axes: Axes, shape: Tensor, title: str) -> None:
    """A mask of taps: grey where a tap counts, white where it is gone."""
    _show(axes, shape, title, cmap="Greys", vmin=0.0, vmax=2.0)
    rows, columns = shape.shape
    if shape.numel() <= _MOST_WRITTEN:
        for row in range(1, rows):
            axes.axhline(row - 0.5, color=GREY, linewidth=0.5)
        for column in range(1, columns):
            axes.axvline(column - 0.5, color=GREY, linewidth=0.5)


def draw_image(axes: Axes, image: Tensor, title: str) -> None:
    """An image ``(C, H, W)`` of any range, stretched to what can be shown."""
    shown = image.permute(1, 2, 0) if image.shape[0] == 3 else image.mean(0)
    low, high = shown.min(), shown.max()
    _show(axes, (shown - low) / (high - low).clamp(min=_LEAST_LIMIT), title, cmap="gray")


def as_kernel(diagonal: Tensor, block: Block) -> Tensor:
    """A number a tap, as the kernel lies; a row a channel where it spans them all."""
    if block.channels > 1:
        return diagonal.reshape(block.channels, -1)
    return diagonal.reshape(prod(block.taps[:-1]), block.taps[-1])


def short_name(name: str, longest: int = 24) -> str:
    """A layer's name, its beginning left out if it is long."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def _show(axes: Axes, values: Tensor, title: str, **how: Any) -> Any:
    high, wide = values.shape[:2]
    is_long = max(high, wide) > _LONG * min(high, wide)
    drawn = axes.imshow(
        values.numpy(), aspect="auto" if is_long else "equal", interpolation="nearest", **how
    )
    axes.set_title(title, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.5)
    return drawn

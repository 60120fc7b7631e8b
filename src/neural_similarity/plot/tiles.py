"""The small maps that plots of similarities are made of."""

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

_MOST_WRITTEN = 25  # cells; in a larger map the values do not fit
_LEAST_LIMIT = 1e-6  # at the identity a map is white; rounding errors are not coloured
_LONG = 4  # a map with a larger ratio of sides is stretched


def draw_difference(
    axes: Axes, difference: Tensor, limit: float, title: str, gains: bool = False
) -> Any:
    """Draw M − I in colour from −limit to limit; ``gains`` writes each tap's gain into its cell."""
    limit = max(limit, _LEAST_LIMIT)
    image = _show(axes, difference, title, cmap=DIVERGING, vmin=-limit, vmax=limit)
    if gains and difference.numel() <= _MOST_WRITTEN:
        for row, values in enumerate(difference.tolist()):
            for column, value in enumerate(values):
                colour = "white" if abs(value) > 0.65 * limit else "black"
                axes.text(
                    column, row, f"{1 + value:.2f}", color=colour, ha="center", va="center",
                    fontsize=7,
                )  # fmt: skip
    return image


def draw_distance(axes: Axes, values: Tensor, title: str) -> None:
    """Draw values from 0 (white) to the highest (black)."""
    highest = max(values.max().item(), _LEAST_LIMIT)
    _show(axes, values, title, cmap="Greys", vmin=0.0, vmax=highest)


def draw_shape(axes: Axes, shape: Tensor, title: str) -> None:
    """Draw a mask of taps: grey where a tap counts, white where it is switched off."""
    _show(axes, shape, title, cmap="Greys", vmin=0.0, vmax=2.0)
    rows, columns = shape.shape
    if shape.numel() <= _MOST_WRITTEN:
        for row in range(1, rows):
            axes.axhline(row - 0.5, color=GREY, linewidth=0.5)
        for column in range(1, columns):
            axes.axvline(column - 0.5, color=GREY, linewidth=0.5)


def draw_image(axes: Axes, image: Tensor, title: str) -> None:
    """Draw an image ``(C, H, W)`` of any range of values, rescaled to 0 to 1."""
    pixels = image.permute(1, 2, 0) if image.shape[0] == 3 else image.mean(0)
    low, high = pixels.min(), pixels.max()
    _show(axes, (pixels - low) / (high - low).clamp(min=_LEAST_LIMIT), title, cmap="gray")


def as_kernel(diagonal: Tensor, block: Block) -> Tensor:
    """One value per tap in the shape of the kernel; one row per channel if M spans all channels."""
    if block.channels > 1:
        return diagonal.reshape(block.channels, -1)
    return diagonal.reshape(prod(block.taps[:-1]), block.taps[-1])


def short_name(name: str, longest: int = 24) -> str:
    """A layer's name; a long one without its beginning."""
    return name if len(name) <= longest else "…" + name[1 - longest :]


def _show(axes: Axes, values: Tensor, title: str, **options: Any) -> Any:
    high, wide = values.shape[:2]
    is_long = max(high, wide) > _LONG * min(high, wide)
    image = axes.imshow(
        values.numpy(), aspect="auto" if is_long else "equal", interpolation="nearest", **options
    )
    axes.set_title(title, fontsize=8)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(visible=True, color=GREY, linewidth=0.5)
    return image

"""The upper part of a network, on feature maps of the lower part that are computed once.

If only late layers learn, the maps below them stay the same, in every epoch and every fold. The
last module of the lower part is found by trial: modules before it are skipped, it returns its
stored output, and the network must return the same features as before. This works for any network
whose data flow has such a point; others are computed as a whole.
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["CachedTrunk"]

_FURTHER = 3  # modules below a possible cut that may be better, because their output is smaller
_PROBES = 2


class CachedTrunk(nn.Module):
    """A network that starts in the middle, from the output of its lower part.

    Args:
        module: an image network in evaluation mode; it is used as is.
        layers: the names of the layers that may change. They belong to the upper part.
        image_shape: ``(C, H, W)``.

    Attributes:
        cut: the name of the module whose output is stored; None if images are stored instead.
        upper: from what :meth:`lower` returns to features.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten())
        >>> part = CachedTrunk(network.eval(), ["2"], (3, 6, 6))
        >>> images = torch.rand(2, 3, 6, 6)
        >>> part.cut, torch.equal(part(part.lower(images)), network(images))
        ('1', True)
    """

    def __init__(
        self, module: nn.Module, layers: Collection[str], image_shape: tuple[int, int, int]
    ) -> None:
        super().__init__()
        self.whole, self.image_shape = module, image_shape
        self.cut: str | None = None
        self.upper = module
        self._stored: _Stored | None = None
        like = next((p for p in module.parameters() if p.is_floating_point()), torch.empty(0))
        generator = torch.Generator().manual_seed(0)
        probe = torch.rand(_PROBES, *image_shape, generator=generator).to(like)
        order = _finished_before(module, layers, probe)
        least = None
        for place in reversed(range(len(order))):
            if least is None or place >= least[1] - _FURTHER:
                size = self._cut_at(order[place], order[:place], probe, least and least[0])
                least = least if size is None else (size, place)

    def forward(self, maps: Tensor) -> Tensor:
        """Features ``(n, D)`` from what :meth:`lower` returned."""
        if self._stored is None:
            features: Tensor = self.upper(maps)
            return features.flatten(1)
        self._stored.output = maps
        blank = maps.new_zeros(()).expand(len(maps), *self.image_shape)
        try:
            features = self.upper(blank)
        finally:
            self._stored.output = None
        return features.flatten(1)

    @torch.no_grad()
    def lower(self, images: Tensor) -> Tensor:
        """The lower part's output for images; the images themselves if there is no cut."""
        if self.cut is None:
            return images
        outputs: list[Tensor] = []
        handle = self.whole.get_submodule(self.cut).register_forward_hook(
            lambda _module, _input, output: _stop_with(outputs, output)
        )
        try:
            self.whole(images)
        except _ReachedError:
            pass
        finally:
            handle.remove()
        return outputs[0]

    def _cut_at(self, name: str, before: list[str], probe: Tensor, least: int | None) -> int | None:
        """Store the output of this module, if it is half as large and the features stay the same.

        Returns its size in that case.
        """
        upper, stored = copy.deepcopy(self.whole), _Stored()
        _replace(upper, name, stored)
        for other in before:
            _replace(upper, other, _Skipped())
        now = (self.cut, self.upper, self._stored)
        self.cut = name
        try:
            with torch.no_grad():
                expected = self.whole(probe).flatten(1)
                maps = self.lower(probe)
                self.upper, self._stored = upper, stored
                size = maps.numel()
                if (least is None or 2 * size < least) and torch.equal(self(maps), expected):
                    return size
        except Exception:  # a network that cannot be run in parts may fail in any way
            pass
        self.cut, self.upper, self._stored = now
        return None


class _ReachedError(Exception):
    """The last module of the lower part has finished; nothing above it is needed."""


class _Stored(nn.Module):
    """Returns what was stored, whatever the input."""

    def __init__(self) -> None:
        super().__init__()
        self.output: Tensor | None = None

    def forward(self, *_arguments: Any, **_options: Any) -> Tensor | None:
        return self.output


class _Skipped(nn.Module):
    """Returns its first argument."""

    def forward(self, input: Any, *_arguments: Any, **_options: Any) -> Any:
        return input


def _stop_with(outputs: list[Tensor], output: Tensor) -> None:
    outputs.append(output)
    raise _ReachedError


def _replace(module: nn.Module, name: str, new: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(module.get_submodule(parent), child, new)


def _finished_before(module: nn.Module, layers: Collection[str], probe: Tensor) -> list[str]:
    """The largest modules that run once, and end before the first of the layers begins.

    They are in the order in which they end.
    """
    names = {part: name for name, part in module.named_modules() if name}
    tuned = {module.get_submodule(name) for name in layers}
    calls: dict[nn.Module, int] = {}
    finished: list[nn.Module] = []
    has_begun = False

    def begin(part: nn.Module) -> None:
        nonlocal has_begun
        calls[part] = calls.get(part, 0) + 1
        has_begun = has_begun or part in tuned

    def end(part: nn.Module) -> None:
        if not has_begun:
            finished.append(part)

    handles = []
    for part in names:
        handles.append(part.register_forward_pre_hook(lambda part, _input: begin(part)))
        handles.append(part.register_forward_hook(lambda part, _input, _output: end(part)))
    try:
        with torch.no_grad():
            module(probe)
    finally:
        for handle in handles:
            handle.remove()
    once = [part for part in finished if calls[part] == 1]
    inside = {child for part in once for child in part.modules() if child is not part}
    return [names[part] for part in once if part not in inside]

"""A predicted similarity: from the output of a network to M (Section 3.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ... import _check
from ...errors import ShapeError
from ...ops.spread_factors import spread_factors
from ...structures import Block, Structure
from ..layer_hooks import assigns
from ..predictors import ImageLayers, PredictorNetwork, TwoLayers, Window
from ..spans import Span

__all__ = ["PredictedSimilarity", "predicted_numbers"]

_WHOLE = Window()
_PAPERS = Span(groups=1)


class PredictedSimilarity(nn.Module):
    """M from the input, in a shape that the operation accepts.

    Args:
        network: any module ``(input, window) -> (N, parameters, *positions)``, with as many
            parameters as :func:`predicted_numbers` returns. One that needs a guide is called as
            ``(input, window, guide)``.
        structure: what M may be. The network predicts the parameters that a static similarity of
            this structure would learn, as the difference from those of the identity. A kernel shape
            is not predicted: it is learned here.
        block: the taps M spans.
        residual: whether the identity is added to the network's output.
        span: whether M spans taps, channels, both or kernels, with the number of groups of
            channels.

    Attributes:
        keeps: whether :attr:`kept` holds the M of the last forward pass, with its gradient.
    """

    start: Tensor
    keeps: bool = False
    kept: Tensor | None = None

    def __init__(
        self,
        network: nn.Module,
        structure: Structure,
        block: Block,
        residual: bool,
        span: Span = _PAPERS,
    ) -> None:
        super().__init__()
        self.network = network
        self.block = block
        self.span = span
        self.residual = residual
        self.structure = structure
        self.inner = structure.predicted
        if structure.mask_name is not None:
            self.shape_numbers = nn.Parameter(structure.initial(block)[structure.mask_name])
        self.name, _ = _predicted_start(self.inner, block)
        self.register_buffer("start", self._beginning(), persistent=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kept": None}  # with its graph it could not be copied

    def _beginning(self) -> Tensor:
        _, start = _predicted_start(self.inner, self.block)
        if not self.span.is_papers:
            start = torch.ones(predicted_numbers(self.structure, self.block, self.span))
        return start if self.residual else start * 0

    def reset_parameters(self) -> None:
        """Refill what is not in the ``state_dict``, for models created on the meta device."""
        with torch.no_grad():
            self.start.copy_(self._beginning())
            if (mask := self.structure.mask_name) is not None:
                self.shape_numbers.copy_(self.structure.initial(self.block)[mask])

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *others: Any
    ) -> None:
        """Restore the constant, which files do not hold and ``to_empty`` overwrites."""
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)
        if self.start.is_meta or assigns(local_metadata):  # the values may have another type
            ours = (tensor for name, tensor in state_dict.items() if name.startswith(prefix))
            like = next((tensor for tensor in ours if tensor.is_floating_point()), self.start)
            self.start = torch.empty_like(self.start, dtype=like.dtype, device=like.device)
        with torch.no_grad(), torch.device("cpu"):
            self.start.copy_(self._beginning())

    def forward(
        self, input: Tensor, window: Window = _WHOLE, guide: Tensor | None = None
    ) -> Tensor:
        """``(N, S·K, *positions)`` or ``(N, K, K, *positions)``, without the kernel shape.

        Over kernels it is ``(N, O·S·K, *positions)``, the factors of a kernel adjacent.
        """
        M = None if guide is not None else self._in_one_operation(input, window)
        if M is None:
            M = self._similarity(self._predicted(input, window, guide))
        if self.keeps:
            self.kept = M
        return M

    def _in_one_operation(self, input: Tensor, window: Window) -> Tensor | None:
        """A diagonal from a network that adds the identity itself, where possible."""
        network = self.network
        if type(network) is TwoLayers and self.adds_a_diagonal:
            return network.fused(input, window, self.start)
        return self._of_image(input)

    def _of_image(self, input: Tensor) -> Tensor | None:
        """A diagonal from the whole image in one operation, where possible."""
        network, diagonal = self.network, self.inner.name == "diagonal"
        if not (diagonal and type(network) is ImageLayers):  # a subclass may do something else
            return None
        # Over kernels there is a factor for each tap of each diagonal, as over taps.
        over = "taps" if self.span.over == "kernels" else self.span.over
        taps, outputs = self.block.size, self.start.numel()
        return network.diagonal(input, self.residual, over, taps, outputs)

    def factors(
        self, input: Tensor, window: Window = _WHOLE, guide: Tensor | None = None
    ) -> Tensor:
        """The factors of M over channels, or over both, those of the taps first.

        Their shape is ``(N, S, *positions)`` or ``(N, K + S, *positions)``; :meth:`spread`
        multiplies them. Over taps and kernels there are none.
        """
        network = self.network
        if guide is None and type(network) is TwoLayers:  # which adds the identity itself
            factors = network.fused(input, window, self.start)
            if factors is not None:
                return factors
        return self._plus_start(self._predicted(input, window, guide))

    def _plus_start(self, predicted: Tensor) -> Tensor:
        return predicted + self.start.reshape(-1, *(1 for _ in predicted.shape[2:]))

    def spread(self, factors: Tensor) -> Tensor:
        """M from its factors: ``(N, S·K, *positions)``."""
        return spread_factors(factors, self.span.over, self.block.size)

    def _similarity(self, predicted: Tensor) -> Tensor:
        batch, positions = predicted.shape[0], predicted.shape[2:]
        if not self.span.is_papers:
            return self.spread(self._plus_start(predicted))
        if self.inner.has_free_entries:
            numbers = self._plus_start(predicted)
            return numbers if self.start.dim() == 1 else numbers.unflatten(1, self.start.shape)
        numbers = predicted.movedim(1, -1).reshape(batch, *positions, *self.start.shape)
        M = self.inner.similarity({self.name: numbers + self.start}, self.block)
        taps = M.dim() - 1 - len(positions)
        return M.movedim(tuple(range(-taps, 0)), tuple(range(1, 1 + taps)))

    def _predicted(self, input: Tensor, window: Window, guide: Tensor | None) -> Tensor:
        network = self.network
        if guide is not None and not getattr(network, "takes_guide", True):
            what = type(getattr(network, "config", network)).__name__.removeprefix("_")
            raise ShapeError(
                f"predictor: expected no guide for {what}, got one of shape "
                f"{_check.shape(guide)}. It predicts from the input alone. Leave the guide out, or "
                f"use PairPredictor(guide_channels=...)."
            )
        predicted: Tensor = network(input, window, *([] if guide is None else [guide]))
        count = self.start.numel()
        if predicted.dim() < 2 or predicted.shape[1] != count:
            span = "" if self.span.is_papers else f" {self.span.text}"
            raise ShapeError(
                f"predictor: expected {count} parameters at each position for structure "
                f"{self.inner.name!r} with {self.block.size} taps{span}, got output of shape "
                f"{_check.shape(predicted)}. Give the predictor {count} output channels."
            )
        samples, batch = predicted.shape[0], input.shape[0]
        if predicted.dim() != input.dim() or (samples != batch and samples != 1):
            positions = ("P", "Q")[: input.dim() - 2]
            shape = ", ".join(("N", str(count), *positions))
            raise ShapeError(
                f"predictor: expected output of shape ({shape}) for a batch of N = {batch}, got "
                f"{_check.shape(predicted)}. N and the sizes of positions may be 1: one M per "
                f"image is (N, {count}{', 1' * len(positions)})."
            )
        return predicted

    def taps_last(self, M: Tensor) -> Tensor:
        """The result of ``forward`` as ``(N, *positions, K)`` or ``(N, *positions, K, K)``.

        With several diagonals it is ``(N, *positions, diagonals, K)``.
        """
        if not self.is_diagonal:
            return M.movedim((1, 2), (-2, -1))
        M = M.movedim(1, -1)
        return M if self.diagonals == 1 else M.unflatten(-1, (self.diagonals, -1))

    @property
    def label(self) -> str:
        """A label to display: what M is, what it spans and what it is predicted from."""
        words = [f"dynamic {self.structure.label}"]
        if not self.span.is_papers:
            words.append(self.span.text)
        network = self.network
        if isinstance(network, PredictorNetwork) and network.config.source != "patch":
            words.append(f"from {network.config.source}")
        return ", ".join(words)

    @property
    def diagonals(self) -> int:
        """How many diagonals M has, if it is given by them: S, or O·S over kernels."""
        return self.span.diagonals

    @property
    def sees_whole_image(self) -> bool:
        """Whether M comes from the whole image, which is then passed without padding."""
        return isinstance(self.network, PredictorNetwork) and self.network.config.source == "image"

    @property
    def adds_a_diagonal(self) -> bool:
        """Whether M is the diagonal of the start plus the prediction, the same for all channels."""
        free = self.inner.has_free_entries and self.structure.mask_name is None
        return free and len(self.start.shape) == 1 and self.span.is_papers

    @property
    def is_diagonal(self) -> bool:
        """Whether M is given by its diagonal alone."""
        _, start = _predicted_start(self.inner, self.block)
        return self.inner.similarity({self.name: start}, self.block).dim() == 1

    def kernel_shape(self) -> Tensor | None:
        """The diagonal of D, if there is a kernel shape."""
        mask = self.structure.mask_name
        return None if mask is None else self.structure.mask({mask: self.shape_numbers})

    def shaped(self, weight: Tensor) -> Tensor:
        """The weight times the kernel shape: ``Wᵀ D M X = (D W)ᵀ M X``. Its last axes are taps."""
        D = self.kernel_shape()
        if D is None:
            return weight
        if weight.dim() > 2:
            return weight * D.reshape(weight.shape[2:])
        return (weight.reshape(-1, len(D)) * D).reshape(weight.shape)


def _predicted_start(structure: Structure, block: Block) -> tuple[str, Tensor]:
    numbers = structure.initial(block)
    if len(numbers) != 1:
        raise ShapeError(
            f"predictor: expected a structure with one tensor of parameters, got "
            f"{structure.name!r} with {len(numbers)} ({', '.join(numbers)}). A dynamic similarity "
            f"predicts one tensor. Make initial return one tensor, or use a static similarity."
        )
    ((name, start),) = numbers.items()
    return name, start


def predicted_numbers(structure: Structure, block: Block, span: Span = _PAPERS) -> int:
    """How many parameters a network predicts at each position."""
    of_taps, diagonals = _predicted_start(structure.predicted, block)[1].numel(), span.diagonals
    if span.over == "channels":
        return diagonals
    return diagonals + of_taps if span.over == "both" else diagonals * of_taps

"""A predicted similarity: from the output of a network to M (Section 3.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .. import _check
from ..errors import ShapeError
from ..structures import Block, Structure
from .predictors import Window

__all__ = ["PredictedSimilarity", "predicted_numbers"]

_WHOLE = Window()


class PredictedSimilarity(nn.Module):
    """M from the input, in the shape that the operation takes.

    Args:
        network: any module ``(input, window) -> (N, parameters, *positions)``, with as many
            parameters as :func:`predicted_numbers` returns.
        structure: what M may be. The network predicts the parameters that a static similarity of
            this structure would learn, as the difference from those of the identity. A kernel shape
            is not predicted: it is learned here.
        block: the taps M spans.
        residual: whether the identity is added to the network's output.
    """

    start: Tensor

    def __init__(
        self, network: nn.Module, structure: Structure, block: Block, residual: bool
    ) -> None:
        super().__init__()
        self.network = network
        self.block = block
        self.residual = residual
        self.structure = structure
        self.inner = structure.predicted
        if structure.mask_name is not None:
            self.shape_numbers = nn.Parameter(structure.initial(block)[structure.mask_name])
        self.name, _ = _predicted_start(self.inner, block)
        self.register_buffer("start", self._beginning(), persistent=False)

    def _beginning(self) -> Tensor:
        _, start = _predicted_start(self.inner, self.block)
        return start if self.residual else start * 0

    def reset_parameters(self) -> None:
        """Refill what is not in the ``state_dict``, for models made on the meta device."""
        with torch.no_grad():
            self.start.copy_(self._beginning())
            if (mask := self.structure.mask_name) is not None:
                self.shape_numbers.copy_(self.structure.initial(self.block)[mask])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
        """Restore the constant, which files do not hold and ``to_empty`` overwrites."""
        super()._load_from_state_dict(state_dict, prefix, *others)
        if self.start.is_meta:  # the tensors of the state_dict are assigned, not copied
            ours = (tensor for name, tensor in state_dict.items() if name.startswith(prefix))
            like = next((tensor for tensor in ours if tensor.is_floating_point()), self.start)
            self.start = torch.empty_like(self.start, dtype=like.dtype, device=like.device)
        with torch.no_grad(), torch.device("cpu"):
            self.start.copy_(self._beginning())

    def forward(self, input: Tensor, window: Window = _WHOLE) -> Tensor:
        """``(N, K, *positions)`` or ``(N, K, K, *positions)``, without the kernel shape."""
        predicted: Tensor = self.network(input, window)
        count = self.start.numel()
        if predicted.dim() < 2 or predicted.shape[1] != count:
            raise ShapeError(
                f"predictor: expected {count} parameters at each position for structure "
                f"{self.inner.name!r} with {self.block.size} taps, got output of shape "
                f"{_check.shape(predicted)}. Give the predictor {count} output channels."
            )
        batch, positions = predicted.shape[0], predicted.shape[2:]
        if self.inner.has_free_entries:
            numbers = predicted + self.start.reshape(-1, *(1 for _ in positions))
            return numbers.reshape(batch, *self.start.shape, *positions)
        numbers = predicted.movedim(1, -1).reshape(batch, *positions, *self.start.shape)
        M = self.inner.similarity({self.name: numbers + self.start}, self.block)
        taps = M.dim() - 1 - len(positions)
        return M.movedim(tuple(range(-taps, 0)), tuple(range(1, 1 + taps)))

    @property
    def is_diagonal(self) -> bool:
        """Whether M is given by its diagonal alone."""
        return self.inner.similarity({self.name: self.start}, self.block).dim() == 1

    def kernel_shape(self) -> Tensor | None:
        """The diagonal of D, if there is a kernel shape."""
        mask = self.structure.mask_name
        return None if mask is None else self.structure.mask({mask: self.shape_numbers})

    def shaped(self, weight: Tensor) -> Tensor:
        """The weight behind the kernel shape: ``Wᵀ D M X = (D W)ᵀ M X``. Its last axes are taps."""
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
            f"predicts one tensor. Let initial return one tensor, or use a static similarity."
        )
    ((name, start),) = numbers.items()
    return name, start


def predicted_numbers(structure: Structure, block: Block) -> int:
    """How many parameters a network predicts at each position."""
    return _predicted_start(structure.predicted, block)[1].numel()

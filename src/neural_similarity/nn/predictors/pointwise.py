"""What predictors that read one vector have in common: two fully connected layers and a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from ... import _check
from ...errors import ShapeError
from .base import Gate, PredictorConfig, PredictorNetwork, gated

__all__ = ["PointwiseConfig", "PointwiseLayers"]

Start = Literal["identity", "random"]


@dataclass(frozen=True)
class PointwiseConfig(PredictorConfig):
    """Options of predictors that read one vector; use one of the subclasses.

    Args:
        hidden: hidden units.
        gate: what is done to the prediction z: ``"none"``, identity + z; ``"tanh"``, 1 + tanh(z);
            ``"sigmoid"``, 2·sigmoid(z). Off the diagonal of a matrix, the 1 is left out.
        batch_norm: BatchNorm after the first layer.
        residual: False leaves the identity out and needs ``gate="none"``: M is z itself.
        start: ``"identity"``: the layer starts exactly as the plain one, because the last layer
            starts at zero. ``"random"``: PyTorch's usual weights.
    """

    hidden: int = 8
    gate: Gate = "sigmoid"
    batch_norm: bool = False
    residual: bool = True
    start: Start = "identity"

    def __post_init__(self) -> None:
        where = type(self).__name__
        _check.whole_numbers(where, hidden=self.hidden)
        _check.true_or_false(where, batch_norm=self.batch_norm, residual=self.residual)
        object.__setattr__(self, "hidden", _check.plain_number(self.hidden))
        _check.known_name(where, "gate", self.gate, get_args(Gate))
        _check.known_name(where, "start", self.start, get_args(Start))
        if not self.residual and (self.start, self.gate) != ("random", "none"):
            raise ShapeError(
                f"{where}: expected start='random' and gate='none' with residual=False, got "
                f"start={self.start!r} and gate={self.gate!r}. A gate keeps M near the identity, "
                f"and an M that starts at zero would stay there. Use residual=True, or change both."
            )


class PointwiseLayers(PredictorNetwork):
    """Linear, ReLU, linear, gate: 1×1 convolutions of maps, or matrices of vectors."""

    config: PointwiseConfig

    def __init__(self, config: PointwiseConfig, channels: int, outputs: int, maps: bool) -> None:
        super().__init__()
        self.config = config
        self.first: nn.Conv2d | nn.Linear
        self.last: nn.Conv2d | nn.Linear
        if maps:
            self.first = nn.Conv2d(channels, config.hidden, 1, bias=not config.batch_norm)
            self.last = nn.Conv2d(config.hidden, outputs, 1)
        else:
            self.first = nn.Linear(channels, config.hidden, bias=not config.batch_norm)
            self.last = nn.Linear(config.hidden, outputs)
        norm = nn.BatchNorm2d if maps else nn.BatchNorm1d
        self.first_norm = norm(config.hidden) if config.batch_norm else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights; with ``start="identity"`` the last layer starts at zero."""
        self.first.reset_parameters()
        self.last.reset_parameters()
        if isinstance(self.first_norm, nn.BatchNorm1d | nn.BatchNorm2d):
            self.first_norm.reset_parameters()
        if self.config.start == "identity":
            nn.init.zeros_(self.last.weight)
            assert self.last.bias is not None
            nn.init.zeros_(self.last.bias)

    def predict(self, vectors: Tensor) -> Tensor:
        """``(N, C, ...)`` to ``(N, outputs, ...)``."""
        hidden: Tensor = self.first_norm(self.first(vectors)).relu()
        return gated(self.last(hidden), self.config.gate)

    def early_layers(self, gains: bool) -> list[nn.Module]:
        return [self.first, self.first_norm]

"""What a predicted M spans: kernel taps, channels, both, or whole kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

from .. import _check
from ..errors import AttachError, ShapeError
from ..structures import Structure

__all__ = ["Over", "Span"]

Over = Literal["taps", "channels", "both", "kernels"]


@dataclass(frozen=True)
class Span:
    """What one factor of M weights, and how many groups of channels have their own factors.

    With kernel o, tap i and group s(c) of channel c, a diagonal M has the entries

    ==============  =======================================  ======================
    over            factor of channel c at tap i             parameters at a position
    ==============  =======================================  ======================
    ``"taps"``      :math:`m_{s(c), i}`                      S·K
    ``"channels"``  :math:`m_{s(c)}`                         S
    ``"both"``      :math:`a_{s(c)} \\, b_i`                  S + K
    ``"kernels"``   :math:`m_{o, s(c), i}`                   O·S·K
    ==============  =======================================  ======================

    Args:
        over: as above.
        groups: S; None means 1 for taps, and every channel for the others. Over kernels, it counts
            groups of the channels that one kernel sees.
        kernels: how many kernels have their own factors: O over kernels, and 1 otherwise.
            :meth:`for_convolution` fills it in.
    """

    over: Over = "taps"
    groups: int | None = None
    kernels: int = 1

    def check(self, structure: Structure, where: str) -> None:
        """Raise if the values are wrong, or if an M of this structure cannot have this span."""
        _check.known_name(where, "over", self.over, get_args(Over))
        if self.groups is not None:
            _check.whole_numbers(where, similarity_groups=self.groups)
        if not self.is_papers and structure.predicted.name != "diagonal":
            raise ShapeError(
                f"{where}: expected structure 'diagonal' with over={self.over!r} and "
                f"similarity_groups={self.groups}, got {structure.label!r}. Groups of channels "
                f"and kernels have their own diagonals, not matrices. Use 'diagonal', or "
                f"over='taps' with one group."
            )

    @property
    def is_papers(self) -> bool:
        """Whether M spans only the taps and is the same for all channels, as in the paper."""
        return self.over == "taps" and self.groups in (None, 1)

    @property
    def text(self) -> str:
        """For messages and tables, such as ``"over channels (4 groups)"``."""
        if self.groups is None:
            return f"over {self.over}"
        return f"over {self.over} ({self.groups} group{'' if self.groups == 1 else 's'})"

    @property
    def diagonals(self) -> int:
        """How many diagonals M has: one per group of channels; over kernels, that per kernel."""
        return self.kernels * (self.groups or 1)

    def for_convolution(self, channels: int, kernels: int, groups: int, where: str) -> Span:
        """The same, filled in for a convolution of O = ``kernels`` in G = ``groups``."""
        of_kernels = self.over == "kernels"
        seen = channels // groups if of_kernels else channels
        default = 1 if self.over == "taps" else seen
        similarity_groups = default if self.groups is None else _check.plain_number(self.groups)
        _check.similarity_groups(where, similarity_groups, seen)
        return replace(self, groups=similarity_groups, kernels=kernels if of_kernels else 1)

    def refuse_features(self, where: str) -> None:
        """Raise if M spans more than a layer without channels has."""
        if not self.is_papers:
            raise AttachError(
                f"{where}: expected over='taps' and one similarity group, got "
                f"over={self.over!r} and similarity_groups={self.groups}. A layer without "
                f"positions has features, not channels with taps. Use block_size to choose how "
                f"many features M spans."
            )

"""From the factors that a predictor gives to the diagonal of M."""

from __future__ import annotations

from torch import Tensor

__all__ = ["spread_factors"]


def spread_factors(factors: Tensor, over: str, taps: int) -> Tensor:
    """One factor for every tap of every group: ``(N, S·K, *positions)``.

    For ``"both"``, the first K are those of the taps. Over taps, all factors are there already.
    """
    if over == "channels":
        return factors.repeat_interleave(taps, 1)
    if over == "both":
        of_taps, of_groups = factors[:, :taps], factors[:, taps:]
        return (of_groups.unsqueeze(2) * of_taps.unsqueeze(1)).flatten(1, 2)
    return factors

"""Learning-rate schedules: pure functions of the fraction of steps done.

So resuming needs no schedule state, and a schedule scales with the number of steps.
"""

from __future__ import annotations

from collections.abc import Callable
from math import cos, pi

__all__ = ["SCHEDULES", "Schedule"]

Schedule = Callable[[float], float]


def _drops(*shares: float) -> Schedule:
    """Divide the learning rate by ten after each of these fractions of the steps."""

    def schedule(fraction: float) -> float:
        return float(0.1 ** sum(fraction >= share for share in shares))

    return schedule


def onecycle(fraction: float, warm: float = 0.2) -> float:
    """Linear warmup over the first fifth of the steps, then linear decay to zero."""
    return fraction / warm if fraction < warm else (1 - fraction) / (1 - warm)


def cosine(fraction: float) -> float:
    """Decay along half a cosine wave."""
    return 0.5 * (1 + cos(pi * fraction))


def halving(fraction: float) -> float:
    """Halved after each tenth of the steps, as in the code of ProtoNet and of R2D2.

    A rate that falls throughout suits runs that may stop early (``patience``).
    """
    return float(0.5 ** int(10 * fraction))


SCHEDULES: dict[str, Schedule] = {
    "constant": lambda fraction: 1.0,
    "cosine": cosine,
    "onecycle": onecycle,
    "halving": halving,
    "paper": _drops(34 / 64, 54 / 64),  # CIFAR: 64K steps, drops at 34K and 54K
    "authors": _drops(20 / 42.5, 30 / 42.5, 37.5 / 42.5),  # their code: 42.5K steps
    "imagenet": _drops(200 / 600, 375 / 600, 550 / 600),  # 600K steps
}
"""By name; each maps the fraction of steps done, in [0, 1), to a fraction of the peak."""

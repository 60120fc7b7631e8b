"""Single cells of the report's tables: a number with its interval, a difference, a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..intervals import Estimate
from .comparison import Comparison

__all__ = [
    "NONE",
    "NOT_SEPARATED",
    "difference",
    "in_shots",
    "number",
    "ours",
    "published",
    "signed",
    "verdict",
]

NONE = "–"
NOT_SEPARATED = "not separated at this budget"


def ours(of: Comparison, brief: bool = False) -> str:
    """Our mean with its interval, or how many seeds diverged."""
    mean = None if of.ours is None else number(of.ours, brief)
    if not of.results.diverged:
        return mean or NONE
    diverged = f"diverged, {len(of.results.diverged)} of {len(of.results.by_seed)}"
    return f"{diverged}; the others {mean}" if mean else diverged


def difference(of: Comparison, baseline: str | None = None, brief: bool = False) -> str:
    """The difference to the other row; the table's ``baseline`` itself is called that."""
    if of.row.name == baseline:
        return "baseline"
    if of.difference is None:
        return NONE
    return signed(of.difference, brief)


def verdict(of: Comparison, baseline: str | None = None) -> str:
    """What the difference shows, in words."""
    if not of.results.by_seed:
        return "open"
    if of.results.diverged:
        return "diverged"
    if of.row.name == baseline or of.difference is None:
        return NONE
    if of.difference.low is None:
        return "needs more seeds"
    if of.better is None:
        return NOT_SEPARATED
    word = "better" if of.better else "worse"
    return word if "seeds" in of.difference.over else f"{word}, one seed"


def number(of: Estimate, brief: bool = False) -> str:
    """A mean with its interval; ``brief`` leaves out what the interval is over."""
    return f"{of.mean:.2f}{_interval(of, brief)}"


def signed(of: Estimate, brief: bool = False) -> str:
    """A difference with its interval."""
    return f"{of.mean:+.2f}{_interval(of, brief)}".replace("-", "−")


def published(numbers: Mapping[str, Any], name: str, shots: int | None) -> str:
    """A number from a paper."""
    printed = numbers.get(name)
    if isinstance(printed, Mapping):
        printed = printed.get(shots)
    return NONE if printed is None else f"{printed:.2f}"


def in_shots(count: int) -> str:
    """``1 shot``, ``5 shots``."""
    return f"{count} shot{'s' * (count > 1)}"


def _interval(of: Estimate, brief: bool) -> str:
    if of.low is None or of.high is None:
        return ""
    upper, lower = of.high - of.mean, of.mean - of.low
    symmetric = abs(upper - lower) < 1e-9 * max(1.0, abs(of.mean))
    text = f" ± {upper:.2f}" if symmetric else f" ({of.low:.2f} – {of.high:.2f})"
    return text if brief or "seeds" in of.over else f"{text} over {of.over}"

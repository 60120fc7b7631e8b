"""Pieces of Markdown that several texts need."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from .intervals import Estimate

__all__ = ["difference", "emphasised", "link", "paragraph", "table"]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    Example:
        >>> print(table(["row", "error"], [["cnn", "7.78"]]))
        | row | error |
        | --- | --- |
        | cnn | 7.78 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def paragraph(text: str) -> str:
    """The text in lines of at most 99 characters."""
    return fill(" ".join(text.split()), 99, break_long_words=False, break_on_hyphens=False)


def link(words: str, target: str | None) -> str:
    """A link, or the words alone if there is nothing to link to."""
    return words if target is None else f"[{words}]({target})"


def difference(ours: Estimate, theirs: Estimate, between: Estimate, digits: int) -> str:
    """Two means and their difference, for a sentence.

    >>> two, one = (Estimate.around(mean, None, "seeds") for mean in (52.0, 51.0))
    >>> difference(two, one, Estimate.around(1.0, 0.5, "seeds"), 1)
    '52.0 against 51.0, **+1.0 ± 0.5**'
    """
    return f"{ours.mean:.{digits}f} against {theirs.mean:.{digits}f}, {emphasised(between, digits)}"


def emphasised(of: Estimate, digits: int = 2) -> str:
    """A difference with its interval; bold if the interval is over seeds and excludes zero."""
    text = f"{of.mean:+.{digits}f}".replace("-", "−")
    if of.high is None:
        return text
    text = f"{text} ± {of.high - of.mean:.{digits}f}"
    return text if of.contains(0.0) or "seeds" not in of.over else f"**{text}**"

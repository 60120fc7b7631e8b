"""Pieces of Markdown that several texts need."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

__all__ = ["paragraph", "table"]


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

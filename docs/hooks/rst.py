"""Docstrings as the site reads them: the few reStructuredText forms we use, as Markdown.

Docstrings are written for ``help()`` and for editors, in the dialect of PyTorch's. The site reads
Markdown. What differs is mathematics, references, tables and the word ``Example``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from textwrap import indent

__all__ = ["to_markdown"]

Link = Callable[[str], str | None]
"""The identifier of the page entry that a name refers to; None if there is no such entry."""


def to_markdown(text: str, link: Link) -> str:
    """A docstring in Markdown.

    Args:
        text: the docstring, dedented.
        link: what to link a name to.
    """
    text = re.sub(r"^( *)\.\. math::(.*(?:\n\1 +\S.*)*)", _displayed, text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", lambda found: rf"\({found[1]}\)", text)
    text = re.sub(
        r":(?:func|class|meth|data|mod):`([^`]+)`", lambda found: _reference(found[1], link), text
    )
    text = re.sub(
        r"^( *)(=+(?: +=+)+)\n(.*)\n\1\2\n((?:.*\n)*?)\1\2$", _table, text, flags=re.MULTILINE
    )
    text = re.sub(
        r"^( *)>>> .*(?:\n\1\S.*)*",
        lambda found: _example(found[0], found[1]),
        text,
        flags=re.MULTILINE,
    )
    text = re.sub(r"^( *)::$\n\n", r"\1\n", text, flags=re.MULTILINE)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)


def _displayed(found: re.Match[str]) -> str:
    """An equation on a line of its own."""
    formula = " ".join(line.strip() for line in found[2].splitlines()).strip()
    return indent(f"\n$$\n{formula}\n$$\n", found[1])


def _example(lines: str, margin: str) -> str:
    """A doctest as a block of code, wherever it stands."""
    return f"{margin}```pycon\n{lines}\n{margin}```"


def _reference(target: str, link: Link) -> str:
    """A name as code, linked where there is something to link to; ``~`` shows its last part."""
    name = target.removeprefix("~")
    shown = name.rpartition(".")[2] if target.startswith("~") else name
    identifier = link(name)
    return f"[`{shown}`][{identifier}]" if identifier else f"`{shown}`"


def _table(found: re.Match[str]) -> str:
    """A simple table; a row without a first cell goes on with the row above."""
    margin, ruler, head, body = found[1], found[2], found[3], found[4]
    columns = [(part.start(), part.end()) for part in re.finditer("=+", ruler)]

    def cells(line: str) -> list[str]:
        line = line[len(margin) :]
        starts = [start for start, _ in columns]
        ends = [*starts[1:], None]
        return [line[a:b].strip() for a, b in zip(starts, ends, strict=True)]

    rows: list[list[str]] = []
    for line in body.splitlines():
        row = cells(line)
        if row[0]:
            rows.append(row)
        else:
            rows[-1] = [f"{a} {b}".strip() for a, b in zip(rows[-1], row, strict=True)]
    lines = [cells(head), ["---"] * len(columns), *rows]
    return "\n".join(f"{margin}| {' | '.join(row)} |" for row in lines)

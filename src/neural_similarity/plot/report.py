"""Reports for a browser: one HTML file with pictures inside, no downloads and no scripts."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .._io import whole_file

__all__ = ["Facts", "Gallery", "Part", "Picture", "Section", "Table", "Text", "write_report"]


@dataclass(frozen=True)
class Facts:
    """Names and values, one per line.

    ``verbatim`` writes numbers as they are: a seed is not 20,240,101, and a rate is not rounded.
    """

    values: Mapping[str, object]
    verbatim: bool = False

    def html(self) -> str:
        text = _verbatim if self.verbatim else _text
        rows = (f"<dt>{_text(k)}</dt><dd>{text(v)}</dd>" for k, v in self.values.items())
        return f"<dl>{''.join(rows)}</dl>"


@dataclass(frozen=True)
class Table:
    """A table; columns of numbers, also as text such as 0.74%, are right-aligned."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]

    def html(self) -> str:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.head)
        classes = [' class="number"' if _are_numbers(column) else "" for column in columns]
        head = "".join(
            f'<th scope="col"{c}>{_text(name)}</th>'
            for name, c in zip(self.head, classes, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(f"<td{c}>{_text(v)}</td>" for v, c in zip(row, classes, strict=True))
            + "</tr>"
            for row in self.rows
        )  # fmt: skip
        return (
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


@dataclass(frozen=True)
class Picture:
    """A PNG file, embedded in the report, and its caption."""

    path: str | os.PathLike[str]
    caption: str

    def html(self) -> str:
        data = base64.b64encode(Path(self.path).read_bytes()).decode()
        caption = _text(self.caption)
        return (
            f'<figure><img src="data:image/png;base64,{data}" alt="{caption}">'
            f"<figcaption>{caption}</figcaption></figure>"
        )


@dataclass(frozen=True)
class Text:
    """Text; ``preformatted`` keeps its lines and spaces."""

    text: str
    preformatted: bool = False

    def html(self) -> str:
        tag = "pre" if self.preformatted else "p"
        return f"<{tag}>{_text(self.text)}</{tag}>"


@dataclass(frozen=True)
class Gallery:
    """Small pictures side by side, each with a caption; uint8 ``(H, W)`` or ``(H, W, 3)``."""

    pictures: Sequence[NDArray[np.uint8]]
    captions: Sequence[str]

    def html(self) -> str:
        from PIL import Image

        figures = []
        for picture, words in zip(self.pictures, self.captions, strict=True):
            file = BytesIO()
            Image.fromarray(picture).save(file, "PNG")
            data, caption = base64.b64encode(file.getvalue()).decode(), _text(words)
            figures.append(
                f'<figure><img src="data:image/png;base64,{data}" alt="{caption}" width="96">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        return f'<div class="gallery">{"".join(figures)}</div>'


Part = Facts | Gallery | Picture | Table | Text


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it."""

    title: str
    parts: Sequence[Part] = field(default_factory=tuple)

    def html(self) -> str:
        parts = "\n".join(part.html() for part in self.parts)
        return f"<section><h2>{_text(self.title)}</h2>\n{parts}</section>"


def write_report(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> None:
    """Write one self-contained HTML file, atomically.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "report.html"
        ...     write_report(file, "Run 1", [Section("Result", [Facts({"test error": "3%"})])])
        ...     "<dt>test error</dt><dd>3%</dd>" in file.read_text()
        True
    """
    body = "\n".join(section.html() for section in sections)
    page = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>{_text(title)}</h1>\n{body}\n</body></html>\n"
    )
    with whole_file(path) as file:
        # In file names that are not UTF-8, bytes are shown as escapes.
        file.write_text(page, encoding="utf-8", errors="backslashreplace")


def _text(value: object) -> str:
    """A value as text that is safe in HTML: 1234 as 1,234."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape(f"{value:.4g}" if isinstance(value, float) else str(value))


def _verbatim(value: object) -> str:
    """A value as Python writes it, as text that is safe in HTML."""
    return escape(str(value))


def _are_numbers(column: Sequence[object]) -> bool:
    numbers = [str(v) for v in column if v not in ("", "–")]
    return bool(numbers) and all(_NUMBER.fullmatch(v) for v in numbers)


_NUMBER = re.compile(r"[+−-]?\d[\d.,% ±–e+−-]*")  # also matches an interval

_STYLE = """
:root { color-scheme: light dark; --text: #1c1c1c; --quiet: #5f5f5f; --line: #d5d5d5;
  --paper: #ffffff; --tint: #f5f5f5; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e4e4; --quiet: #a0a0a0;
  --line: #444444; --paper: #1b1b1b; --tint: #262626; } }
body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: var(--text);
  background: var(--paper); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { text-align: left; padding: 0.25rem 0.9rem 0.25rem 0; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.1rem 1.5rem; margin: 0; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
.gallery { display: flex; flex-wrap: wrap; gap: 0.8rem; }
.gallery figure { width: 8.5rem; margin: 0; } .gallery figcaption { overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 4px; }
figcaption { color: var(--quiet); font-size: 0.9rem; }
pre { background: var(--tint); padding: 0.8rem; overflow-x: auto; font-size: 0.85rem; }
"""

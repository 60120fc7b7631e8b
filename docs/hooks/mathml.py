"""Equations as MathML, which browsers draw themselves: no script, nothing fetched."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

__all__ = ["as_mathml"]

_DISPLAYED = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
_INLINE = re.compile(r'<span class="arithmatex">\s*\\\((.*?)\\\)\s*</span>', re.DOTALL)


def as_mathml(page: str) -> str:
    """A page of HTML, its LaTeX replaced."""
    page = _DISPLAYED.sub(lambda found: _mathml(found[1], "block"), page)
    return _INLINE.sub(lambda found: _mathml(found[1], "inline"), page)


def _mathml(formula: str, display: str) -> str:
    formula = html.unescape(formula).strip()
    formula = formula.replace(r"\operatorname", r"\mathrm").replace(r"\textstyle", "")
    return convert(formula, display=display)

"""A griffe extension: docstrings become Markdown before mkdocstrings parses them."""

from __future__ import annotations

from typing import Any

import griffe
from public_names import ROOT, entries
from rst import to_markdown

__all__ = ["MarkdownDocstrings"]


class MarkdownDocstrings(griffe.Extension):
    """Rewrites every docstring of the library."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        if pkg.path == ROOT:
            _rewrite(pkg, entries(pkg))


def _rewrite(member: griffe.Object, targets: dict[str, str]) -> None:
    """Rewrite a docstring, and those of everything inside."""
    owner = member if member.is_class else member.parent

    def link(name: str) -> str | None:
        if owner is not None and owner.is_class and name in owner.members:
            entry = targets.get(owner.canonical_path)
            return entry and f"{entry}.{name}"
        return targets.get(name)

    if member.docstring is not None:
        member.docstring.value = to_markdown(member.docstring.value, link)
    for inner in member.members.values():
        if isinstance(inner, griffe.Object):
            _rewrite(inner, targets)

"""MkDocs hooks: pages of reference from ``__all__``, equations, and links that leave docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mathml import as_mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from public_names import ROOT, entries, identifier, load, public_names, rooms
from rst import to_markdown

REPOSITORY = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each room."""
    package = load()
    targets = entries(package)
    for path, room in rooms(package).items():
        name = path.removeprefix(f"{ROOT}.")
        page = _page(path, room, targets)
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Name files of the repository that are not part of the site, instead of linking to them."""

    def named(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path = (REPOSITORY / "docs" / target).resolve().relative_to(REPOSITORY)
        return text if f"`{path.name}`" in text else f"{text} (`{path}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)]+)\)", named, markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    return as_mathml(html)


def _page(path: str, room: griffe.Module, targets: dict[str, str]) -> str:
    """What a room is for, its public names in a table, then each of them in full."""
    short = path.replace(ROOT, "ns", 1)
    lines = [f"# `{short}`", "", _text(room), ""]
    if path == ROOT:
        lines += ["Import it as `import neural_similarity as ns`.", ""]
    lines += ["| name | |", "| --- | --- |"]
    own: list[str] = []
    for name, member in public_names(room).items():
        if isinstance(member, griffe.Module):
            link = f"({name}.md)" if path == ROOT else f"(#{_anchor(name)})"
            own += [] if path == ROOT else _module(name, f"{short}.{name}", member)
        else:
            target, here = targets[member.canonical_path], identifier(room, name)
            link = f"[{target}]"
            own += [f"::: {here}", ""] if target == here else []
        lines.append(f"| [`{name}`]{link} | {_summary(member)} |")
    return "\n".join([*lines, "", *own])


def _module(name: str, title: str, module: griffe.Module) -> list[str]:
    """A module that a room lists: its own public names."""
    lines = [f"## `{title}` {{ #{_anchor(name)} }}", "", _text(module), ""]
    for name, member in public_names(module).items():
        if isinstance(member, griffe.Module):
            lines += _submodule(f"{title}.{name}", member)
        elif not member.is_alias or title.startswith("ns.data.fetching"):
            lines += _entry(identifier(module, name), 3)
    return lines


def _submodule(title: str, module: griffe.Module) -> list[str]:
    lines = [f"### `{title}`", "", _text(module), ""]
    for name in public_names(module):
        lines += _entry(identifier(module, name), 4)
    return lines


def _anchor(name: str) -> str:
    return f"module-{name}"


def _entry(target: str, level: int) -> list[str]:
    return [f"::: {target}", "    options:", f"      heading_level: {level}", ""]


def _text(member: griffe.Object | griffe.Alias) -> str:
    docstring = member.docstring
    return to_markdown(docstring.value, lambda name: None) if docstring else ""


def _summary(member: griffe.Object | griffe.Alias) -> str:
    """The first sentence of a docstring, on one line of a table."""
    first = _text(member).split("\n\n")[0].replace("\n", " ").strip()
    return first.replace("|", r"\|")

"""MkDocs hooks: a reference from ``__all__``, equations, links that leave docs/, a last check.

MkDocs calls the functions whose names begin with ``on_``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mathml import as_mathml
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from public_names import ROOT, entries, identifier, load, public_names, rooms
from rst import to_markdown

REPOSITORY = Path(__file__).parents[2]
_BENCHMARKS = REPOSITORY / "benchmarks"
_FETCHED = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)="(https?:)?//[^"]*"[^>]*>"""
    r"""|@import\s+["'](?:https?:)?//|url\(["']?(?:https?:)?//"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page of reference for each room, and the benchmarks with their pictures."""
    for path in (_BENCHMARKS / "README.md", *sorted(_BENCHMARKS.glob("results/*.png"))):
        target = "benchmarks.md" if path.suffix == ".md" else f"results/{path.name}"
        files.append(File.generated(config, target, abs_src_path=str(path)))
    package = load()
    targets = entries(package)
    for path, room in rooms(package).items():
        name = path.removeprefix(f"{ROOT}.")
        page = _package_page(room, targets) if path == ROOT else _room_page(room, targets)
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Page, **kwargs: Any) -> str:
    """Name files of the repository that are not part of the site, instead of linking to them.

    A page that is alone in its tab has no list of pages beside it.
    """
    if page.parent is None:
        page.meta["hide"] = ["navigation"]

    markdown = markdown.replace("](../benchmarks/README.md)", "](benchmarks.md)")

    def named(found: re.Match[str]) -> str:
        text, target = found[1], found[2]
        path = (REPOSITORY / "docs" / target).resolve().relative_to(REPOSITORY)
        return f"`{path}`" if path.name in text else f"{text} (`{path}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((\.\./[^)]+)\)", named, markdown)


def on_page_content(html: str, **kwargs: Any) -> str:
    """Draw equations."""
    return as_mathml(html)


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse a site that would fetch anything from another host."""
    for file in Path(config.site_dir).rglob("*"):
        if file.suffix in (".html", ".css"):
            found = _FETCHED.search(file.read_text(encoding="utf-8"))
            if found:
                raise PluginError(
                    f"{file}: expected files of the site alone, got {found[0]!r}. Readers may have "
                    f"no network. Serve the file from docs/, or do without."
                )


def _package_page(package: griffe.Module, targets: dict[str, str]) -> str:
    """What can be reached as ``ns.name``; most of it is documented on the page of its room."""
    lines = ["# `neural_similarity`", "", _text(package), ""]
    lines += [
        "Every name below is reached as `ns.name` after `import neural_similarity as ns`.",
        "",
    ]
    names = public_names(package)
    errors = {name for name, member in names.items() if "errors" in member.canonical_path}
    own: list[str] = []
    for title, chosen in (
        ("Packages", [n for n, m in names.items() if isinstance(m, griffe.Module)]),
        ("Functions", [n for n, m in names.items() if m.is_function]),
        ("Classes", [n for n, m in names.items() if m.is_class and n not in errors]),
        ("Errors and warnings", [n for n in names if n in errors and not names[n].is_module]),
    ):
        lines += [f"## {title}", "", "| name | |", "| --- | --- |"]
        for name in chosen:
            member = names[name]
            if isinstance(member, griffe.Module):
                lines.append(f"| [`ns.{name}`]({name}.md) | {_summary(member)} |")
                continue
            target = targets[member.canonical_path]
            lines.append(f"| [`{name}`][{target}] | {_summary(member)} |")
            if target == identifier(package, name):
                own += _entry(target, 2)
        lines.append("")
    return "\n".join([*lines, *own])


def _room_page(room: griffe.Module, targets: dict[str, str]) -> str:
    """What a room is for, its public names in a table, then each of them in full."""
    title = room.path.replace(ROOT, "ns", 1)
    lines = [f"# `{title}`", "", _text(room), "", "| name | |", "| --- | --- |"]
    own, modules = list[str](), list[str]()
    for name, member in public_names(room).items():
        if isinstance(member, griffe.Module):
            link = f"(#module-{name})"
            modules += _module(f"{title}.{name}", member, 2)
        else:
            link, target = f"[{targets[member.canonical_path]}]", identifier(room, name)
            own += _entry(target, 2) if targets[member.canonical_path] == target else []
        lines.append(f"| [`{name}`]{link} | {_summary(member)} |")
    return "\n".join([*lines, "", *own, *modules])


def _module(title: str, module: griffe.Module, level: int) -> list[str]:
    """A module that a room lists: its own public names, but not those that come from its files."""
    name = title.rpartition(".")[2]
    heading = title if level == 2 else name
    lines = [f"{'#' * level} `{heading}` {{ #module-{name} }}", "", _text(module), ""]
    names = public_names(module)
    modules = [name for name, member in names.items() if isinstance(member, griffe.Module)]
    for name, member in names.items():
        if name in modules:
            lines += _module(f"{title}.{name}", member, level + 1)  # type: ignore[arg-type]
        elif not modules:  # otherwise it is listed with its own module, or by the room
            lines += _entry(identifier(module, name), level + 1)
    return lines


def _entry(target: str, level: int) -> list[str]:
    return [f"::: {target}", "    options:", f"      heading_level: {level}", ""]


def _text(member: griffe.Object | griffe.Alias) -> str:
    docstring = member.docstring
    return to_markdown(docstring.value, lambda name: None) if docstring else ""


def _summary(member: griffe.Object | griffe.Alias) -> str:
    """The first paragraph of a docstring, in one cell of a table."""
    first = _text(member).split("\n\n")[0].replace("\n", " ").strip()
    return first.replace("|", r"\|")

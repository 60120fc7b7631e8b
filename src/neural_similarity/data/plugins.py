"""Pillow's plug-ins for formats that it cannot read itself, such as the photographs of phones."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

__all__ = ["missing_plugin", "register_plugins"]

_PLUGINS = {
    "pillow_heif": ("pillow-heif", (".heic", ".heif")),
    "pillow_jxl": ("pillow-jxl-plugin", (".jxl",)),
}
"""The package and the suffixes of every plug-in, by the name of its module."""


@cache
def register_plugins() -> None:
    """Let Pillow read the formats of the plug-ins that are installed."""
    for name in _PLUGINS:
        try:
            plugin = import_module(name)  # the one for JPEG XL registers itself
        except ImportError:
            continue
        if name == "pillow_heif":
            plugin.register_heif_opener()


def missing_plugin(path: Path) -> str | None:
    """The package that would read a file with this suffix, if it is not installed."""
    for module, (package, suffixes) in _PLUGINS.items():
        if path.suffix.lower() in suffixes:
            try:
                import_module(module)
            except ImportError:
                return package
    return None

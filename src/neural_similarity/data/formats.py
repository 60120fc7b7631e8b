"""The formats of image files, and Pillow's plug-ins for those that it cannot read itself."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from .extras import needs

__all__ = ["EXTENSIONS", "decoders", "missing_plugin", "readable_formats"]

EXTENSIONS = (
    ".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg", ".jxl",
    ".pgm", ".png", ".ppm", ".tga", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Suffixes of image files in lower case."""

_FORMATS = (
    "AVIF", "BMP", "GIF", "HEIF", "JPEG", "JPEG2000", "JXL", "MPO", "PNG", "PPM", "TGA", "TIFF",
    "WEBP",
)  # fmt: skip
_PLUGINS = {
    "pillow_heif": ("pillow-heif", (".heic", ".heif")),
    "pillow_jxl": ("pillow-jxl-plugin", (".jxl",)),
}
"""The package and the suffixes of every plug-in, by the name of its module."""


@cache
def readable_formats() -> tuple[str, ...]:
    """Pillow's names of our formats that it can read, with the plug-ins that are installed.

    Pillow knows others, some of which start programs, and looks at a file's content, not its name.
    """
    from PIL import Image

    Image.init()
    for name in _PLUGINS:
        try:
            plugin = import_module(name)  # the one for JPEG XL registers itself
        except ImportError:
            continue
        if name == "pillow_heif":
            plugin.register_heif_opener()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def decoders() -> tuple[str, ...]:
    """What decides which files can be read: the version of Pillow, and the formats."""
    with needs("pillow", "image files"):
        import PIL

    return PIL.__version__, *readable_formats()


def missing_plugin(path: Path) -> str | None:
    """The package that would read a file with this suffix, if it is not installed."""
    for module, (package, suffixes) in _PLUGINS.items():
        if path.suffix.lower() in suffixes:
            try:
                import_module(module)
            except ImportError:
                return package
    return None

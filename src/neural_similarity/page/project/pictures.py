"""Users' pictures: checked before they are stored, re-encoded before they are shown."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from ..._io import open_regular
from ...data.formats import missing_plugin, readable_formats
from ...data.images import upright
from ..refused import RefusedError

if TYPE_CHECKING:
    from PIL import Image

__all__ = [
    "LARGE",
    "MOST_BYTES",
    "MOST_PIXELS",
    "SMALL",
    "check_pixels",
    "decoded",
    "encoded",
    "suffix_of",
]

MOST_BYTES = 32 * 2**20
"""The largest picture file."""
MOST_PIXELS = 60_000_000
"""The largest picture, in pixels; it needs 180 MB of memory."""
SMALL, LARGE = 256, 1024
"""The longer side of the small and the large copies that the page shows."""

_SUFFIXES = {
    "AVIF": ".avif", "BMP": ".bmp", "GIF": ".gif", "HEIF": ".heic", "JPEG": ".jpg", "MPO": ".jpg",
    "PNG": ".png", "PPM": ".ppm", "TIFF": ".tif", "WEBP": ".webp",
}  # fmt: skip


def decoded(source: bytes | Path, side: int | None = None) -> Image.Image:
    """A picture upright and in colour, decoded completely.

    Args:
        source: the content of a file, or the file.
        side: the size that is needed; a JPEG is decoded to about twice that, which is faster. None
            decodes all pixels.
    """
    image, _ = _decoded(source, side)
    return image


def suffix_of(content: bytes, side: int) -> tuple[str, Image.Image]:
    """The suffix for a picture file, by its content and not its name; and the picture."""
    image, name = _decoded(content, side)
    return _SUFFIXES[name], image


def check_pixels(file: Path) -> None:
    """Raise if a file has more pixels than a picture may have; only its first bytes are read.

    A file that is not a picture passes: decoding will reveal it.
    """
    from PIL import Image

    try:
        with open_regular(file) as content, _opened(content) as image:
            _check_size(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels() from error
    except (RefusedError, FileNotFoundError):
        raise
    except Exception:  # each of Pillow's readers has its own errors for damaged files
        return


def encoded(image: Image.Image, side: int) -> bytes:
    """A JPEG file of at most ``side`` pixels per side, without any metadata."""
    small = image.copy()
    small.thumbnail((side, side))
    file = BytesIO()
    small.save(file, "JPEG", quality=82)
    return file.getvalue()


def _decoded(source: bytes | Path, side: int | None) -> tuple[Image.Image, str]:
    from PIL import Image, UnidentifiedImageError

    try:
        file = BytesIO(source) if isinstance(source, bytes) else open_regular(source)
        with file, _opened(file, is_upload=isinstance(source, bytes)) as image:
            _check_size(image)
            if side is not None:
                image.draft("RGB", (2 * side, 2 * side))
            return upright(image), str(image.format)
    except (RefusedError, FileNotFoundError):
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels() from error
    except UnidentifiedImageError as error:
        raise RefusedError(_unreadable(source), 415) from error
    except Exception as error:  # each of Pillow's readers has its own errors for damaged files
        raise RefusedError("The picture is damaged.", 415) from error


def _unreadable(source: bytes | Path) -> str:
    """The reason for the user; phones write HEIC files, which need a plug-in."""
    is_heic = isinstance(source, bytes) and source[4:11] in (b"ftyphei", b"ftyphev", b"ftypmif")
    file = Path("photo.heic" if is_heic else "") if isinstance(source, bytes) else source
    if package := missing_plugin(file):
        return f"It is a HEIC picture. Install the package {package}, or convert it to JPEG."
    return "It is not a readable picture."


def _check_size(image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise RefusedError(
            f"It has {image.width:,} × {image.height:,} pixels, more than "
            f"{MOST_PIXELS // 10**6} million.",
            413,
        )


def _too_many_pixels() -> RefusedError:
    return RefusedError(f"It has more than {MOST_PIXELS // 10**6} million pixels.", 413)


def _opened(file: BinaryIO, is_upload: bool = False) -> Image.Image:
    """A picture file; an upload needs a format that shows in its first bytes."""
    from PIL import Image

    formats = readable_formats()
    return Image.open(file, formats=[f for f in formats if f in _SUFFIXES or not is_upload])

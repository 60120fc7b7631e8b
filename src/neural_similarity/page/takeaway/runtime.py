"""The parts of onnxruntime-web that a model's page needs, extracted once from its npm package.

They are not in the repository. ``make runtime`` gets the package from npm; :func:`install_runtime`
extracts two files, checks their SHA-256, and puts them next to itself, where a wheel includes them.
"""

from __future__ import annotations

import gzip
import hashlib
import tarfile
from pathlib import Path

from ..._io import write_file
from ...errors import FileFormatError

__all__ = ["VERSION", "has_runtime", "install_runtime", "read_runtime"]

VERSION = "1.30.0"
_FOLDER = Path(__file__).parent / "runtime"
_SCRIPT, _WASM = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
_DIGESTS = {
    _SCRIPT: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    _WASM: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}


def has_runtime() -> bool:
    """Whether the files are installed."""
    return all(file.is_file() for file in _files())


def read_runtime() -> tuple[bytes, bytes]:
    """The script, and the WebAssembly module compressed by gzip."""
    script, wasm = (file.read_bytes() for file in _files())
    return script, wasm


def install_runtime(package: Path) -> None:
    """Extract the files from the npm package onnxruntime-web.

    Args:
        package: the file that ``npm pack`` wrote.
    """
    _FOLDER.mkdir(exist_ok=True)
    script, wasm = _files()
    with tarfile.open(package) as archive:
        write_file(script, _member(archive, package, _SCRIPT))
        write_file(wasm, gzip.compress(_member(archive, package, _WASM), 9, mtime=0))


def _files() -> tuple[Path, Path]:
    return _FOLDER / _SCRIPT, _FOLDER / f"{_WASM}.gz"


def _member(archive: tarfile.TarFile, package: Path, name: str) -> bytes:
    try:
        file = archive.extractfile(f"package/dist/{name}")
    except KeyError:
        file = None
    content = file.read() if file is not None else b""
    digest = hashlib.sha256(content).hexdigest()
    if digest != _DIGESTS[name]:
        raise FileFormatError(
            f"{package}: expected {name} of onnxruntime-web {VERSION} (SHA-256 {_DIGESTS[name]}), "
            f"got {digest}. Get that version from npm."
        )
    return content

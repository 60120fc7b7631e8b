"""A page in one file that runs the ONNX model in the browser: no server, no network.

Pages opened from disk cannot load other files. So everything is in ``try.html``: the
model, onnxruntime-web, and a script that prepares pictures as Pillow does.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from pathlib import Path

from ..._io import write_file
from .runtime import read_runtime

__all__ = ["write_browser_page"]

_README = """try.html runs model.onnx in a browser: open it with a double click, or give it
to somebody. Pictures stay on their computer, and no network is needed.
"""
_TEMPLATE = Path(__file__).parent / "template"


def write_browser_page(folder: Path, name: str) -> None:
    """Write ``try.html`` next to ``model.onnx`` and ``labels.json``, and add a line to README.txt.

    Args:
        folder: what ``nsl adapt`` wrote.
        name: the title of the page.
    """
    script, wasm = read_runtime()
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    parts = {
        "style": _text("try.css"),
        "facts": _in_markup({"name": name, **labels}),
        "runtime": _in_base64(script),
        "wasm": _in_base64(wasm),
        "model": _in_base64((folder / "model.onnx").read_bytes()),
        "resample": _text("resample.js"),
        "script": _text("try.js"),
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _text("try.html"))
    write_file(folder / "try.html", page.encode())
    readme = (folder / "README.txt").read_text(encoding="utf-8")
    write_file(folder / "README.txt", f"{readme}\n{_README}".encode())


def _text(name: str) -> str:
    return (_TEMPLATE / name).read_text(encoding="utf-8")


def _in_base64(content: bytes) -> str:
    return b64encode(content).decode("ascii")


def _in_markup(values: object) -> str:
    """JSON that cannot end its HTML element: class names may contain markup."""
    return json.dumps(values).replace("<", "\\u003c").replace(">", "\\u003e")

"""``nsl teach``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .shared.options import BackboneSpec
from .shared.printing import print_error, print_line

__all__ = ["teach"]


def teach(
    project: Annotated[
        Path,
        typer.Argument(
            metavar="PROJECT",
            help="A folder with one folder of images per class; created if it does not exist.",
        ),
    ] = Path("my-images"),
    port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Port to listen on (default: 8350, or a free one).",
            show_default=False,
        ),
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    backbone: BackboneSpec = None,
) -> None:
    """Teach a model your own classes on a page in the browser.

    Make a class for each thing it should recognise, drop a few pictures of each, and watch the
    accuracy on new pictures grow. See which labels look wrong, try it on a picture or the camera,
    and take the model away as a zip with ONNX inside.

    Everything stays on this computer: the page is served only to this computer and fetches nothing
    from elsewhere. PROJECT is a plain folder of pictures, which nsl adapt can read too; what you
    delete goes to a bin inside it. Ctrl-C stops the page, and nothing is lost.

    \b
    nsl teach
    nsl teach birds --backbone efficientnet_lite2
    nsl teach birds --no-browser --port 8000
    nsl adapt birds --out birds-model
    """
    from ..adapt import load_backbone, missing_hint
    from ..errors import RunError
    from ..page import open_project
    from .shared.one_module import named_module_here

    try:
        from ..page.server import serve
    except ModuleNotFoundError as error:
        raise RunError(
            f"teach: expected the packages that the page needs, got no {error.name}. Install them "
            f"with: pip install 'neural-similarity[page]'."
        ) from error

    def announce(address: str) -> None:
        print_line(f"Open {address}")
        print_line("Ctrl-C ends it.")

    with named_module_here(backbone):
        extractor = load_backbone(backbone)
    with open_project(project) as opened_project:
        if backbone is None and (hint := missing_hint()):
            print_error(hint)
        serve(opened_project, extractor, port, announce, browser)

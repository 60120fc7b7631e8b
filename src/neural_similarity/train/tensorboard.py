"""Write metrics as events for TensorBoard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import RunError

__all__ = ["check_tensorboard", "tensorboard_events"]

_SCALARS = ("loss", "error", "lr", "images_per_second")


def check_tensorboard() -> None:
    """Raise if the package is missing."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: F401
    except ImportError as error:
        raise RunError(
            "train: expected the package tensorboard, got none. Install it with: pip install "
            "'neural-similarity[tensorboard]'."
        ) from error


@contextmanager
def tensorboard_events(folder: Path, step: int = 0) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes lines of metrics into ``folder/tensorboard``.

    Training continues after ``step``: what an earlier process wrote beyond it is not shown.
    """
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1) as writer:

        def write(line: dict[str, Any]) -> None:
            for name in _SCALARS:
                if line["kind"] in ("train", "eval") and name in line:
                    writer.add_scalar(f"{line['kind']}/{name}", line[name], line["step"])

        yield write

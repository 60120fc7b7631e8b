"""Versions, machine, command and time of a start."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ..commit import code_version
from ..distributed import World

__all__ = ["here_and_now"]


def here_and_now(world: World) -> dict[str, Any]:
    """Versions, machine, command and time."""
    return {
        "neural_similarity": __version__,
        "commit": code_version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "processor": _processor(),
        "device": str(world.device),
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} × {os.cpu_count()}" if names else platform.processor()

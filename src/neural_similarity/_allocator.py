"""Keep freed memory for the next training step.

The C library of Linux returns blocks of more than 32 MB to the system as soon as they are freed.
The next step gets them back page by page, which can take as long as its computation: a map of 64
channels and 32 x 32 positions is that large for 128 images.
"""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

_LARGEST = 2**30  # bytes; a larger block is still returned immediately
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h


def keep_freed_memory() -> bool:
    """Keep up to a gigabyte of freed memory in this process; false if nothing was changed.

    Only where the C library is glibc, and not if the environment has settings for it.
    """
    is_set = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in os.environ
    )
    if not sys.platform.startswith("linux") or is_set:
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)  # not in every C library
    if set_option is None:
        return False
    options = (_MMAP_THRESHOLD, _TRIM_THRESHOLD)
    return all(set_option(option, _LARGEST) == 1 for option in options)

"""Files and folders written completely or not at all, swaps, locks, and the cache directory.

Everything is written to a scratch folder next to its target and then moved, so a reader sees the
old version or the new one, never half of it. A process locks its scratch folder for as long as it
runs: the leftovers of a killed process are recognised by a lock that nobody holds, and are cleaned
up by the next process that writes there.
"""

from .files import cache_directory, make_private_folder, whole_file, write_file
from .folders import alone_in, settle, whole_folder
from .locks import locked, try_lock
from .regular import check_regular, open_regular, read_regular
from .scratch import foreign_entries, has_writers, scratch_folder

__all__ = [
    "alone_in",
    "cache_directory",
    "check_regular",
    "foreign_entries",
    "has_writers",
    "locked",
    "make_private_folder",
    "open_regular",
    "read_regular",
    "scratch_folder",
    "settle",
    "try_lock",
    "whole_file",
    "whole_folder",
    "write_file",
]

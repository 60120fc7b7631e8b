"""Freed memory is kept: large blocks that come and go cost page faults once."""

import os
import subprocess
import sys

import pytest

from neural_similarity._allocator import keep_freed_memory

BLOCKS, PAGES = 4, 10 * 2**10  # pages of 4,096 bytes: 40 MB per block
COUNT = f"""
import resource
from neural_similarity._allocator import keep_freed_memory
print(keep_freed_memory())
import torch
for number in range(16 + {BLOCKS}):  # the first find their places
    if number == 16:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros({PAGES} * 1024).fill_(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

glibc = pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names,
    reason="the C library is not glibc",
)


def _count(**more: str) -> tuple[bool, int]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))}
    output = subprocess.run(
        [sys.executable, "-c", COUNT], env=kept | more, capture_output=True, text=True, check=True
    ).stdout.split()
    return output[0] == "True", int(output[1])


@glibc
def test_large_blocks_are_used_again():
    changed, faults = _count()
    assert changed
    assert faults < PAGES / 2
    left, faults = _count(MALLOC_TOP_PAD_="131072")
    assert not left
    assert faults > BLOCKS * PAGES * 0.9


@pytest.mark.parametrize(
    ("name", "value"),
    [("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"), ("MALLOC_ARENA_MAX", "2")],
)
def test_settings_of_the_user_win(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert keep_freed_memory() is False
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.delenv(name)
    assert keep_freed_memory() is False

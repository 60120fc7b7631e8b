"""Run ``nsl`` as a user would, in this process or in a separate one."""

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from neural_similarity.cli import main


@dataclass(frozen=True)
class Ended:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


def nsl(capsys, monkeypatch, *arguments) -> Ended:
    """``nsl`` in this process: fast, as torch is imported already."""
    monkeypatch.setattr(sys, "argv", ["nsl", *map(str, arguments)])
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # the command sets it; undone for later tests
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    said = capsys.readouterr()
    return Ended(0 if code is None else int(code), said.out, said.err)


def nsl_process(*arguments, **options) -> Ended:
    """``nsl`` in a separate process, for what only a process can show."""
    options.setdefault("timeout", 240)
    done = subprocess.run(
        [sys.executable, "-m", "neural_similarity", *map(str, arguments)],
        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def one_line(ended: Ended) -> str:
    """The error of a command that was given bad input: exit code 2, one line, no traceback."""
    assert ended.code == 2, ended
    lines = ended.err.strip().splitlines()
    assert "Traceback" not in ended.err
    assert len(lines) == 1 or lines[0].startswith("Usage:"), ended.err
    return lines[-1]

"""Memory of the fast paths, and building the compiled one: once, completely, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.forks import Forks

from neural_similarity.ops.similarity_conv import compiled, dispatch, narrow, panels

MEMORY = """
import sys, torch
from torch.nn import functional
from neural_similarity.ops.similarity_conv import dispatch, operator
kind, chosen = sys.argv[1:]
last = torch.channels_last
x = torch.randn(64, 32, 64, 64).to(memory_format=last).requires_grad_()
w = torch.randn(32, 32, 3, 3, requires_grad=True)
m = torch.rand(64, 9, 64, 64, requires_grad=True)
def peak():
    return int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
def step(size):
    if kind == "plain":
        y = functional.conv2d(x[:size], w, padding=1)
    else:
        settings = ((1, 1), (1, 1), (1, 1), 1)
        y = operator.similarity_conv2d(x[:size], w, m[:size], *settings)
    y.backward(torch.ones_like(y))
    x.grad = w.grad = m.grad = None
open("/proc/self/clear_refs", "w").write("5")  # not the peak of the process that forked
with dispatch.only(chosen):
    step(1)
    before = peak()
    step(64)
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident size in kilobytes")
def test_memory(path: str, forks: Forks, tmp_path: Path) -> None:
    """A step takes no more than a plain one, the similarity's gradient and 16 MB."""

    def peak(kind: str) -> float:
        ended = forks.run(MEMORY, kind, path, cwd=tmp_path)
        assert ended.code == 0, ended.err
        return float(ended.out)

    similarity = 64 * 9 * 64 * 64 * 4 / 2**20
    # Slices of x and m give each a gradient of the slice and one of the whole.
    assert peak("ours") <= peak("plain") + 2 * similarity + 16


def _run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(__file__).resolve().parents[2])
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )


LOAD = (
    "from neural_similarity.ops.similarity_conv import compiled\n"
    "print([compiled.load() is None for _ in range(2)])"
)


def test_turned_off(forks: Forks, tmp_path: Path) -> None:
    setup = ("support.forks:set_environment", "NEURAL_SIMILARITY_COMPILED=0")
    ended = forks.run(LOAD, cwd=tmp_path, setup=setup)
    assert ended.out.strip() == "[True, True]"
    assert "neural_similarity" not in ended.err


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_failing_compiler_warns_once(compiler: str, forks: Forks, tmp_path: Path) -> None:
    variables = (f"CXX={compiler}", f"NEURAL_SIMILARITY_CACHE={tmp_path}")
    ended = forks.run(LOAD, cwd=tmp_path, setup=("support.forks:set_environment", *variables))
    assert ended.out.strip() == "[True, True]"
    assert ended.err.count("RuntimeWarning") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow  # compiles twice
def test_built_once_by_several_processes(tmp_path: Path) -> None:
    if compiled.load() is None:
        pytest.skip("no compiler")
    environment = {**os.environ, "NEURAL_SIMILARITY_CACHE": str(tmp_path)}
    root = str(Path(__file__).resolve().parents[2])
    command = [sys.executable, "-c", LOAD]
    processes = [
        subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in processes:
        output, _ = process.communicate()
        assert output.decode().strip() == "[False, False]"
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".sha256", ".so"]
    assert "building" not in _run(LOAD, NEURAL_SIMILARITY_CACHE=str(tmp_path)).stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory map")
def test_one_openmp_runtime() -> None:
    if compiled.load() is None:
        pytest.skip("no compiler")
    code = (
        "import torch\n"
        "from neural_similarity.ops.similarity_conv import compiled\n"
        "compiled.load()\n"
        "maps = open('/proc/self/maps').read().split()\n"
        "print(len({m for m in maps if 'libgomp' in m or 'libomp' in m or 'libiomp' in m}))"
    )
    assert _run(code).stdout.strip() == "1"


def test_the_dispatcher_takes_the_compiled_path_where_it_can() -> None:
    if (kernels := compiled.load()) is None:
        pytest.skip("no compiler")
    assert dispatch.choose(torch.zeros(1)) is kernels
    assert dispatch.choose(torch.zeros(1, dtype=torch.float64)) is kernels
    assert dispatch.choose(torch.zeros(1, dtype=torch.bfloat16)) is narrow
    assert dispatch.choose(torch.zeros(1, device="meta")) is panels


def test_two_processes_that_build_at_once_both_load(monkeypatch, tmp_path) -> None:
    """The first to end removes the mark of failure that both have made."""
    library = tmp_path / "operators.so"
    monkeypatch.setattr(compiled, "_path", lambda: library)
    monkeypatch.setattr(compiled, "_build", lambda path, flags: path.touch())
    monkeypatch.setattr(compiled, "_is_whole", lambda path: False)
    mark, loaded = library.with_suffix(".failed"), []

    def load(path: str) -> None:
        loaded.append(path)
        mark.unlink()  # the other process

    monkeypatch.setattr(torch.ops, "load_library", load)
    compiled._load_library()
    assert loaded == [str(library)]
    assert not mark.exists()

"""The subpackages ("rooms"): reachable by name, small, and closed to each other's private names."""

import ast
import subprocess
import sys
from pathlib import Path

import neural_similarity as ns

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "neural_similarity"
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("[!_]*/__init__.py"))
SHARED = {
    "_allocator",
    "_autocast",
    "_check",
    "_io",
    "_json",
    "_memory",
    "_shapes",
    "_tensor_files",
}  # the foundation, which every room may use
SOURCES = sorted(
    path for part in ("src", "experiments", "benchmarks") for path in (ROOT / part).rglob("*.py")
)


def imported(path):
    """Every ``(room, names)`` that a file imports; names are those of modules and of objects."""
    parts = path.relative_to(PACKAGE.parent).parts if PACKAGE in path.parents else ()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else ()
            module = [*base, *(node.module or "").split(".")] if node.module else list(base)
            for alias in node.names:
                names = [*module, alias.name]
                if names[0] == ns.__name__ and len(names) > 1:
                    yield names[1], names[2:]


def private(path):
    """What a file imports from other rooms and should not: ``(file, room, names)`` each."""
    own = path.relative_to(PACKAGE).parts[0] if PACKAGE in path.parents else None
    public = set() if own is None else SHARED | {"__version__"}
    for room, names in imported(path):
        if room != own and any(n.startswith("_") for n in ({room} - public) | set(names)):
            yield str(path.relative_to(ROOT)), room, names


def test_private_names_stay_in_their_room():
    some_of_shared = PACKAGE / "train" / "runs" / "run_folder.py"
    assert list(private(some_of_shared)) == []
    assert [found for path in SOURCES for found in private(path)] == []


def test_private_names_would_be_found(monkeypatch):
    for name, text in {
        "one": "from ..nn._padding import x",
        "two": "from ..nn.static import _x",
    }.items():
        path = PACKAGE / "convert" / f"{name}.py"
        monkeypatch.setattr(Path, "read_text", lambda self, text=text: text)
        assert len(list(private(path))) == 1


def test_no_room_is_flat():
    """A folder with more files than one sees at a glance wants rooms of its own."""
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert len(list(folder.glob("*.py"))) <= 20, folder


FRESH = """
import os, sys, torch
for room in sys.argv[1:]:
    if os.fork() == 0:  # a process in which nothing of the package has been imported yet
        import neural_similarity as ns
        os._exit(getattr(ns, room).__name__ != f"neural_similarity.{room}")
    print(room, os.wait()[1])
"""


def test_rooms_are_there_in_a_fresh_interpreter():
    rooms = [room for room in ROOMS if room != "cli"]
    command = [sys.executable, "-c", FRESH, *rooms]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{room} 0" for room in rooms]


def test_no_test_file_imports_another():
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names]
                module = (getattr(node, "module", None) or "").split(".")
                assert not any(name.startswith("test_") for name in (*names, *module)), path

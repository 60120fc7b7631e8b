"""Experiments and benchmarks use only public names of the library."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    file for room in ("experiments", "benchmarks") for file in (ROOT / room).rglob("*.py")
)
# The benchmarks of the operation choose between its paths.
PARTS = {
    *(f"neural_similarity.ops.similarity_conv.{n}" for n in ("dispatch", "compiled", "reference")),
    "neural_similarity.ops.factored_similarity",
}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_from_the_library(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.ImportFrom) or node.level or node.module is None:
            continue
        if node.module.partition(".")[0] == "neural_similarity":
            module = importlib.import_module(node.module)
            room = hasattr(module, "__path__") or node.module == "neural_similarity.errors"
            assert room or node.module in PARTS, f"{node.module} is not a room"
            for alias in node.names:
                public = alias.name in module.__all__ or f"{node.module}.{alias.name}" in PARTS
                assert public, f"{node.module} does not export {alias.name}"

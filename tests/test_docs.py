"""What the documents say is so: code runs, commands exist, paths are there."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import neural_similarity as ns

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
)


def test_the_readme_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "birds.safetensors").stat().st_size < 4096


@pytest.mark.parametrize("name", ["fewshot.md", "models.md"])
def test_first_snippets_run_as_they_stand(name):
    first = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / name).read_text(), re.DOTALL)[0]
    exec(compile(first, name, "exec"), {})


def test_the_readme_tree_is_the_tree():
    tree = re.search(r"```\nsrc/neural_similarity/\n(.*?)```", README, re.DOTALL)[1]
    for line in tree.splitlines():
        folder = ROOT / ("src/neural_similarity" if line.startswith("  ") else "")
        assert (folder / line.split()[0]).is_dir(), line


def test_the_readme_lists_every_structure():
    rows = re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)
    assert sorted(rows) == ns.structures.list_structures()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        assert (document.parent / target).exists(), target


def test_every_make_target_in_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_public_names_are_sorted_and_there():
    assert ns.__all__ == sorted(ns.__all__)
    assert all(hasattr(ns, name) for name in ns.__all__)


def test_what_python_and_type_checkers_import_is_the_same():
    tree = ast.parse(Path(ns.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    for statement in block.body:
        home = "neural_similarity" + (f".{statement.module}" if statement.module else "")
        module = importlib.import_module(home)
        for alias in statement.names:
            assert getattr(ns, alias.name) is getattr(module, alias.name), alias.name
    told = {alias.name for statement in block.body for alias in statement.names}
    assert told == set(ns.__all__)


def test_first_steps_runs_and_shows_what_it_promises():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "first_steps.py"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {
        line[:32].strip(): line[32:].replace("%", "").split()
        for line in done.stdout.splitlines()
        if line.endswith("%")
    }
    numbers, faint, _ = rows["diagonal similarity"]
    assert numbers == "27"
    assert float(faint) > float(rows["nothing"][1]) + 30
    difference = float(re.search(r"after merging: (\S+)", done.stdout)[1])
    assert difference <= 1e-5


def test_sequences_shows_products_that_plain_layers_cannot_learn():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "sequences.py"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    scores = {line[44:62].strip(): float(line.split()[-1]) for line in done.stdout.splitlines()[1:]}
    assert scores["Conv1d"] < 0.1
    assert scores["Linear"] < 0.1
    assert scores["DynamicConv1d"] > 0.8
    assert scores["DynamicLinear"] > 0.8
    assert scores["DynamicLSTMCell"] > 0.8


def test_benchmarks_command():
    def run(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "benchmarks", *arguments],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    assert "static_step" in run("--help").stdout
    assert "growth" in run("--help").stdout
    wrong = run("nonsense")
    assert wrong.returncode == 2
    assert "got nonsense" in wrong.stderr

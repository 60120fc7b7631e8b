"""What the documents say is true: code runs, commands exist, paths exist."""

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import neural_similarity as ns

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text()
DOCUMENTS = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    and path.relative_to(ROOT).parts[0] != "site"
)
# Those of adapt.md need images: tests/adapt and tests/cli run them.
PAGES_WITH_SNIPPETS = sorted(
    path
    for path in DOCS.glob("*.md")
    if path.name != "adapt.md" and "```python" in path.read_text()
)


def snippets(document: Path) -> list[str]:
    """The blocks of Python that stand on their own: they begin with an import."""
    return re.findall(r"```python\n((?:import|from) .*?)```", document.read_text(), re.DOTALL)


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short_and_its_example_runs(tmp_path, monkeypatch):
    assert len(README.splitlines()) <= 150
    monkeypatch.chdir(tmp_path)
    (example,) = snippets(ROOT / "README.md")
    exec(compile(example, "README.md", "exec"), {})
    assert (tmp_path / "birds.safetensors").stat().st_size < 4096


@pytest.mark.parametrize("page", PAGES_WITH_SNIPPETS, ids=lambda page: page.stem)
def test_snippets_run_as_they_stand(page, tmp_path, monkeypatch):
    blocks = snippets(page)
    assert blocks
    if not any("@register" in block for block in blocks):
        monkeypatch.chdir(tmp_path)
        for block in blocks:
            exec(compile(block, page.name, "exec"), {})
        return
    # In a process of its own, so that no other test sees the registered names.
    code = "".join(f"exec(compile({block!r}, {page.name!r}, 'exec'), {{}})\n" for block in blocks)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr


def test_the_readme_tree_is_the_tree():
    tree = re.search(r"```\nsrc/neural_similarity/\n(.*?)```", README, re.DOTALL)[1]
    named = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith("  ")}
    package = ROOT / "src" / "neural_similarity"
    assert named == {path.parent.name for path in package.glob("[!_]*/__init__.py")}
    for line in tree.splitlines():
        if not line.startswith("  "):
            assert (ROOT / line.split()[0]).is_dir(), line


def test_the_structures_guide_lists_every_structure():
    rows = re.findall(r"^\| `(\w+)` \|", (DOCS / "structures.md").read_text(), re.MULTILINE)
    assert sorted(rows) == ns.structures.list_structures()


@pytest.mark.parametrize("document", [DOCS / "design.md", ROOT / "CONTRIBUTING.md"])
def test_paths_in_prose_are_there(document):
    """Relative to the repository or to the package."""
    paths = re.findall(r"`((?:\w[\w.-]*/)+[\w.-]*|_\w+\.py)`", document.read_text())
    assert len(paths) > 20
    for path in paths:
        places = (ROOT / path, ROOT / "src" / "neural_similarity" / path)
        assert any(place.exists() for place in places), path


def test_the_site_has_every_page_and_every_room():
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    pages = set(re.findall(r": ([\w/-]+\.md)$", nav, re.MULTILINE))
    rooms = {name for name in ns.__all__ if isinstance(getattr(ns, name), ModuleType)}
    reference = {f"reference/{room}.md" for room in rooms | {"neural_similarity"}}
    assert pages == {page.name for page in DOCS.glob("*.md")} | reference | {"benchmarks.md"}


def test_docstrings_become_markdown():
    to_markdown = load(DOCS / "hooks" / "rst.py").to_markdown
    entries = {"attach": "neural_similarity.convert.attach.attach"}

    def converted(text):
        return to_markdown(text, entries.get)

    assert converted(":func:`attach`.") == "[`attach`][neural_similarity.convert.attach.attach]."
    assert converted(":class:`~torch.nn.Conv2d`") == "`Conv2d`"
    assert converted("its :math:`M_s`") == r"its \(M_s\)"
    assert converted(".. math:: a\n    + b\n\nwith a") == "\n$$\na + b\n$$\n\n\nwith a"
    assert converted("    Example:\n        >>> 1 + 1\n        2") == (
        "    Examples:\n        ```pycon\n        >>> 1 + 1\n        2\n        ```"
    )
    table = "==  ====\na   b\n==  ====\n1   x\n    y\n2   z\n==  ===="
    assert converted(table) == "| a | b |\n| --- | --- |\n| 1 | x y |\n| 2 | z |"


def test_the_picture_can_be_drawn(tmp_path):
    load(DOCS / "pictures" / "draw.py").main(tmp_path)
    for name in ("similarity.svg", "similarity.png"):
        assert (tmp_path / name).stat().st_size > 10_000
        assert (DOCS / "pictures" / name).is_file()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target in re.findall(r"\]\(([^)#]+)(?:#[\w-]+)?\)", document.read_text()):
        if not target.startswith(("https://", "reference/")):  # the site makes the reference
            assert (document.parent / target).exists(), target


def test_every_make_target_in_the_documents_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = [t for d in DOCUMENTS for t in re.findall(r"(?:\$ |`)make ([\w-]+)", d.read_text())]
    assert {"demo", "test", "check", "docs"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_make_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[1].split())
    assert set(re.findall(r'"make ([\w-]+) ', makefile)) == targets - {"help"}
    for path in re.findall(r"tests/\S+", makefile):
        assert (ROOT / path).exists(), path


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
    imported = {alias.name for statement in block.body for alias in statement.names}
    assert imported == set(ns.__all__)


def check_first_steps(printed: str) -> None:
    rows = {
        line[:32].strip(): line[32:].replace("%", "").split()
        for line in printed.splitlines()
        if line.endswith("%")
    }
    assert len(rows) >= 5
    parameters, faint, _ = rows["diagonal similarity"]
    assert parameters == "27"
    assert float(faint) > float(rows["nothing"][1]) + 30
    difference = float(re.search(r"after merging: (\S+)", printed)[1])
    assert difference <= 1e-5


def test_first_steps_shows_what_it_promises_in_a_quarter_of_the_steps(monkeypatch, capsys):
    example = load(ROOT / "examples" / "first_steps.py")
    fit = example.fit
    monkeypatch.setattr(example, "fit", lambda *given, steps: fit(*given, steps=steps // 4))
    example.main()
    check_first_steps(capsys.readouterr().out)


@pytest.mark.slow
def test_first_steps_runs_and_shows_what_it_promises():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "first_steps.py"],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_first_steps(done.stdout)


@pytest.mark.slow
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


def test_benchmarks_command(forks):
    def run(*arguments):
        code = "import runpy; runpy.run_module('benchmarks', run_name='__main__', alter_sys=True)"
        return forks.run(code, *arguments, cwd=ROOT)

    described = "".join(run("--help").out.split())  # a long line may be broken anywhere
    names = [f.stem for f in (ROOT / "benchmarks").glob("*.py") if "\ndef run(" in f.read_text()]
    assert names
    assert all(name in described for name in names)
    wrong = run("nonsense")
    assert wrong.code == 2
    assert "got nonsense" in wrong.err

"""Untrusted text is printed, but never interpreted by the terminal."""

import ast
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.progress import Progress
from support.adapt_cases import backbone
from support.command import nsl, nsl_process, one_line
from support.data_files import png

import neural_similarity.cli
from neural_similarity.adapt import save_backbone
from neural_similarity.cli.shared.printing import print_json, printable
from neural_similarity.cli.shared.progress import TrainingBar, progress_bar
from neural_similarity.cli.shared.table import print_table
from neural_similarity.ops.similarity_conv import compiled

CLI = Path(neural_similarity.cli.__file__).parent
CLEAR = "\x1b[2J"
NOT_UTF_8 = os.fsdecode(b"caf\xe9.png")
ADAPT = ("--backbone", "plain.safetensors", "--method", "proto", "--folds", 2, "--no-onnx")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("plain text, é, 鳥, 👍🏽", "plain text, é, 鳥, 👍🏽"),
        ("a\x1b[2Jb\x07", r"a\x1b[2Jb\x07"),
        ("two\r\nlines\t", r"two\r\nlines\t"),
        ("\x9b31m\x85\x7f\x00", r"\x9b31m\x85\x7f\x00"),
        ("\u202egpj.exe\u2066\u2028", r"\u202egpj.exe\u2066\u2028"),
        (NOT_UTF_8, r"caf\xe9.png"),
        ("\ud800", r"\ud800"),
        (Path(f"a/{CLEAR}"), r"a/\x1b[2J"),
    ],
)
def test_printable(text, line):
    assert printable(text) == line
    assert printable(line) == line
    line.encode()


def test_only_one_module_prints():
    for file in sorted(CLI.rglob("*.py")):
        calls = [
            node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)
        ]
        names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
        assert file.name == "printing.py" or "print" not in names, file


def test_json_can_be_read_again(capsys):
    value = {"image": NOT_UTF_8, "class": f"é {CLEAR} \x9b \u202e"}
    print_json(value)
    line = capsys.readouterr().out
    assert json.loads(line) == value
    assert printable(line.rstrip("\n")) == line.rstrip("\n")
    assert "é" in line


def test_tables_and_bars(capsys):
    print_table(("class", "images"), [(CLEAR, 1000), ("[red]x[/red]", 2)])
    out = capsys.readouterr().out
    assert r"\x1b[2J" in out
    assert "[red]x[/red]" in out
    with progress_bar() as bar:
        assert not bar.columns[0].markup
    with Progress(*TrainingBar.columns(), disable=True) as bar:
        TrainingBar(bar, f"[/x] {CLEAR}")
        assert [task.description for task in bar.tasks] == [r"[/x] \x1b[2J"]


def _is_clean(ended):
    lines = (ended.out + ended.err).splitlines()
    return lines and all(printable(line) == line for line in lines)


def test_names_of_classes_and_files(capsys, monkeypatch, tmp_path):
    """From the images to the prediction, with damaged images and files that are none."""
    compiled.load()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    made = backbone()
    save_backbone("plain.safetensors", made.module, made.source, made.preprocessing)
    classes = (f"a{CLEAR}$x_$", "b\n\u202e" + "$" * 30)
    for number, name in enumerate(classes):
        folder = tmp_path / "mine" / name
        folder.mkdir(parents=True)
        for image in (f"{CLEAR}1.png", NOT_UTF_8, "3.png"):
            (folder / image).write_bytes(png(9, 9, (255 * number, 0, 0)))
        for damaged in (f"{CLEAR}.jpg", os.fsdecode(b"\xff.jpg"), f"{CLEAR}.txt"):
            (folder / damaged).write_bytes(b"no image")

    def run(*arguments):
        ended = nsl(capsys, monkeypatch, *arguments)
        assert _is_clean(ended)
        return ended

    out = os.fsdecode(b"out\x1b\xff")
    done = run("adapt", "mine", "--out", out, *ADAPT)
    assert done.code == 0, done.err
    assert r"a\x1b[2J$x_$" in done.out
    assert r"\xff.jpg" in done.err
    assert r"\x1b[2J.txt" in done.err
    report = Path(out, "report.html").read_text()
    assert "b\n\u202e$$" in report  # HTML shows it as text
    for words in (("mine", "--json"), ("mine", "--why", f"why{CLEAR}.png"), (f"no{CLEAR}.png",)):
        assert run("predict", out, *words).code in (0, 1, 2)
    one_line(run("adapt", f"no{CLEAR}", "--out", "x"))
    one_line(run("data", "check", f"no{CLEAR}"))
    one_line(run("inspect", f"no{CLEAR}"))
    one_line(run("train", "--data", "imagefolder", "--data-dir", f"no{CLEAR}"))
    assert run("predict", "--no\x1b[2J").err.endswith("No such option: --no\\x1b[2J\n")


def test_the_library_logs_one_line(capsys, monkeypatch):
    nsl(capsys, monkeypatch, "--version")
    nsl(capsys, monkeypatch, "--version")  # once is enough
    logging.getLogger("neural_similarity").warning("skipped: %s", f"a\n{CLEAR}")
    assert capsys.readouterr().err == "skipped: a\\n\\x1b[2J\n"


def test_a_closed_output_is_one_line():
    ended = nsl_process("data", "list", preexec_fn=lambda: os.close(1))
    assert "expected an open standard output, got a closed one" in one_line(ended)


def test_a_closed_error_output_and_input():
    def close():
        os.close(0)
        os.close(2)

    ended = nsl_process("--version", preexec_fn=close)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("neural-similarity")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_output_is_one_line():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "neural_similarity", "--version"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (2, "nsl: disk: No space left on device\n")

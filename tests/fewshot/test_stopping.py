"""Ctrl-C while few-shot methods are trained or tested: one line that says how to continue."""

import json
import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from support.command import nsl
from support.fewshot_runs import SMALL

from neural_similarity.cli.shared import fewshot_runs as _fewshot
from neural_similarity.fewshot import train_method

CASES = {
    "training": (
        ("--method", "finetune,nearest", "--steps", "1000000", "--out", "my all"),
        "my all/plain/metrics.jsonl",
        "nsl fewshot --resume --out 'my all' --shots 1,2",
    ),
    "tests": (
        ("--method", "maml", "--steps", "2", "--episodes", "20000", "--out", "run"),
        "run/results/3way-1shot-20000-0-4query.partial.jsonl",
        "nsl fewshot --resume --out run --shots 1,2",
    ),
}


def stopped_after(lines, file, forks, *arguments):
    """What ``nsl`` says when Ctrl-C comes once the file has so many lines, and these lines."""
    setup = ("support.forks:interrupt_at", str(file), lines)
    ended = forks.nsl(*arguments, cwd=Path.cwd(), setup=setup)
    assert ended.code == 130, ended
    return ended.err, file.read_text().splitlines()


@pytest.mark.parametrize("phase", [pytest.param("training", marks=pytest.mark.slow), "tests"])
def test_the_line_goes_on_where_it_was_stopped(phase, tmp_path, monkeypatch, forks):
    monkeypatch.chdir(tmp_path)
    settings = {k: v for k, v in SMALL.to_dict().items() if k not in ("method", "episodes")}
    Path("tiny.json").write_text(json.dumps(settings))
    arguments, name, command = CASES[phase]
    begun = ("fewshot", "--config", "tiny.json", "--shots", "1,2", *arguments)
    said, lines = stopped_after(5, Path(name), forks, *begun)
    assert said == f"nsl: stopped. Continue with: {command}\n"
    again, more = stopped_after(len(lines) + 3, Path(name), forks, *shlex.split(command)[1:])
    assert again == said
    assert more[: len(lines)] == lines
    if phase == "training":
        steps = [line["step"] for line in map(json.loads, more) if line["kind"] == "train"]
        assert steps == list(range(1, len(steps) + 1))


@pytest.mark.parametrize("kind", ["step", "eval"])
def test_a_signal_at_the_very_end_of_training_is_not_lost(tmp_path, kind):
    """Otherwise a comparison would go on with the next method."""

    def callback(line):
        if (line["kind"], line["step"]) == (kind, 4):
            signal.raise_signal(signal.SIGINT)

    config = replace(SMALL, steps=4)
    with pytest.raises(KeyboardInterrupt):
        train_method(config, tmp_path / "run", callback=callback)
    done = train_method(None, tmp_path / "run", resume=True)
    assert done.metrics()[-1]["step"] == 4


def test_stopped_before_there_is_anything_to_continue(capsys, monkeypatch, tmp_path):
    def stop(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_fewshot, "train_method", stop)
    ended = nsl(capsys, monkeypatch, "fewshot", "train", "--method", "proto", "--out", "run")
    assert (ended.code, ended.err) == (130, "nsl: stopped. Nothing was written.\n")

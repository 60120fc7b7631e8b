"""``nsl fewshot`` as a user sees it."""

import json
import re

import pytest
from support.command import nsl, nsl_process, one_line
from support.fewshot_runs import SMALL

from neural_similarity.cli.shared.fewshot_methods import METHOD_LINES
from neural_similarity.fewshot import FewShotRun, create_method, list_methods
from neural_similarity.train import Run, TrainConfig


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    settings = {k: v for k, v in SMALL.to_dict().items() if k != "method"}
    (tmp_path / "tiny.json").write_text(json.dumps({**settings, "steps": 4}))
    return lambda *arguments: nsl(capsys, monkeypatch, "fewshot", *arguments)


def test_methods_side_by_side_share_a_plain_network(run, tmp_path, monkeypatch):
    methods = "nearest,static,proto,meta_dynamic"
    quick = ("--set", "episodes=4", "--set", "val_episodes=4", "--shots", "1,2")
    dynamic = ("--set", "over=both", "--set", "from=image")
    arguments = ("--config", "tiny.json", "--method", methods, *quick, *dynamic, "--out", "all")
    done = run(*arguments)
    assert done.code == 0, done.err
    rows = re.findall(r"^ (\w+) +[\d.]+ ± [\d.]+ +[\d.]+ ± ", done.out, re.MULTILINE)
    assert rows == ["nearest", "static", "proto", "dynamic", "meta_dynamic"]
    folder = tmp_path / "all"
    for name in ("nearest", "static"):
        assert FewShotRun.open(folder / name).config.backbone == str(folder / "plain")
    trained = [p.parent.name for p in folder.glob("*/metrics.jsonl") if p.read_text()]
    assert sorted(trained) == ["dynamic", "meta_dynamic", "plain", "proto"]
    for name in ("dynamic", "meta_dynamic"):
        config = FewShotRun.open(folder / name).config
        assert (config.over, config.predictor) == ("both", "image")
    assert (folder / "methods.png").read_bytes().startswith(b"\x89PNG")
    report = (folder / "report.html").read_text()
    assert "meta_dynamic" in report
    assert "data:image/png;base64" in report

    assert "expected a new folder, got one that exists" in one_line(run(*arguments))
    (folder / "proto" / "results" / "3way-1shot-4-0-4query.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    moved = ("--data-dir", tmp_path)  # where data are decides nothing
    resumed = run("--resume", "--out", "../all", "--shots", "1,2", *moved)
    assert resumed.code == 0, resumed.err
    monkeypatch.chdir(tmp_path)
    said = (resumed.out.replace("../all", "all"), done.out)
    untimed = [re.sub(r" +[\d.]+ *$", "", text, flags=re.M) for text in said]
    assert untimed[0] == untimed[1]
    other = run("--config", "tiny.json", "--method", methods, "--resume", "--out", "all")
    assert "expected the settings the runs began with, got different ones" in one_line(other)


def test_help_lists_all_methods_and_which_are_transductive(run):
    assert list(METHOD_LINES) == list_methods()
    for name, line in METHOD_LINES.items():
        assert line.endswith(" (transductive)") == create_method(name).transductive, name
    text = run("--help").out
    lines = [f"{name:22}{line}" for name, line in METHOD_LINES.items()]
    assert all(line in text for line in lines)
    assert max(map(len, lines)) < 100


def test_a_transductive_method_from_the_command(run):
    done = run("train", "--method", "bd_cspn", "--config", "tiny.json", "--out", "cspn")
    assert done.code == 0, done.err
    tested = run("eval", "cspn", "--shots", "2", "--episodes", "3")
    assert re.search(r"bd_cspn 3-way 2-shot: accuracy .* transductive, 0 adapted", tested.out)
    options = ("--method", "tim", "--set", "method_options.steps=0", "--out", "bad")
    assert "steps to be a whole number of at least 1" in one_line(run("train", *options))


def test_one_method_trained_then_tested(run, tmp_path):
    done = run("train", "--method", "ridge", "--config", "tiny.json", "--out", "ridge")
    assert done.code == 0, done.err
    assert "test it with: nsl fewshot eval ridge" in done.out
    assert re.search(r"ridge: validation accuracy [\d.]+ ± [\d.]+% at step 4", done.out)
    output = run("eval", "ridge", "--shots", "2", "--episodes", "8")
    assert output.code == 0, output.err
    found = json.loads(run("eval", "ridge", "--shots", "2", "--episodes", "8", "--json").out)
    (result,) = found["results"]
    assert f"{100 * result['mean']:.2f} ± {100 * result['interval']:.2f}%" in output.out
    assert result["episodes"] == 8
    assert result["episodes_per_second"] == 8 / result["seconds"]
    assert f"{result['episodes_per_second']:.3g} episodes a second\n" in output.out
    assert "accuracies" not in result
    few = one_line(run("eval", "ridge", "--ways", "9"))
    assert "expected at least 9 classes for 9-way episodes, got 4" in few
    assert "expected at least 13 images of each class" in one_line(
        run("eval", "ridge", "--shots", 9)
    )
    batch = run("eval", "ridge", "--shots", "2", "--episodes", "8", "--batch-norm", "batch")
    assert "transductive" in batch.out
    assert len(list((tmp_path / "ridge" / "results").iterdir())) == 2
    again = run("train", "--resume", "--out", "ridge")
    assert again.code == 0
    both = run("--resume", "--out", "ridge", "--shots", "2", "--set", "steps=5")
    assert "expected the settings the run began with" in one_line(both)
    assert run("train", "--resume", "--out", "ridge", "--data-dir", tmp_path).code == 0
    none = one_line(run("eval", "ridge", "--shots", "2", "--episodes", "0"))
    assert "expected count to be a whole number of at least 1, got 0" in none
    (tmp_path / "ridge" / "results" / "3way-2shot-8-0-4query.json").write_text('{"mean": 0')
    assert "got damaged text" in one_line(run("eval", "ridge", "--shots", "2", "--episodes", "8"))
    both = run("--resume", "--out", "ridge", "--shots", "2", "--data-dir", tmp_path)
    assert re.search(r"^ ridge +[\d.]+ ± ", both.out, re.MULTILINE)


def test_a_backbone_brings_its_settings(run, tmp_path):
    assert run("train", "--method", "static", "--config", "tiny.json", "--out", "static").code == 0
    sizes = [
        f"--set={k}={getattr(SMALL, k)}" for k in ("n_way", "n_shot", "n_query", "epoch_steps")
    ]
    done = run("train", "--method", "meta_static", "--backbone", "static", "--steps", "2", *sizes,
               "--set", "val_episodes=3", "--out", "meta")  # fmt: skip
    assert done.code == 0, done.err
    config = FewShotRun.open(tmp_path / "meta").config
    assert (config.data, config.options) == ("tiny", SMALL.options)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "protonet"), "Did you mean 'proto'"),
        (("--method", "proto", "--data", "glyph"), "nsl: --data: expected one of"),
        (("--method", "proto,protos"), "Did you mean 'proto'"),
        (("train", "--method", "proto,ridge"), "expected one method, got 2"),
        (("train", "--method", "meta_static"), "expected a backbone for 'meta_static', got none"),
        (("train", "--backbone", "nowhere"), "expected the folder of a run, got none"),
        (
            ("train", "--backbone", "plain"),
            "expected a run of 'nsl fewshot train', got 'nsl train'",
        ),
        (("eval", "plain"), "expected a run of 'nsl fewshot train', got 'nsl train'"),
        (("eval", "nowhere"), "expected the folder of a run, got none"),
        (
            ("--method", "proto", "--data", "digits", "--set", "image_size=16"),
            "that were not trained on, got '0', '1', '2'",
        ),
        (("--method", "finetune", "--set", "n_way=400"), "expected at least 400 classes for 400-"),
        (("--method", "finetune", "--shots", "1,9"), "expected at least 24 images of each class"),
        (("--method", "proto", "--set", "train_way=600"), "expected at least 600 classes for 600-"),
        (("train", "--set", "n_query=16"), "expected at least 21 images of each class"),
        (("--method", "proto", "--shots", "few"), "expected --shots to be whole numbers"),
        (("--method", "proto", "--set", "train_wya=3"), "Did you mean 'train_way'"),
        (("--method", "proto", "train"), "expected options after 'train', got some before it"),
        (("--resume",), "expected --out with --resume"),
        (("--resume", "--out", "nowhere"), "expected the folder of a run, got none"),
        (("--resume", "--force", "--out", "plain"), "got both"),
        (("--method", "proto", "--data", "cifar-fs", "--data-dir", "."), "nsl data get cifar"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_input_ends_in_one_line_and_changes_nothing(run, tmp_path, arguments, message):
    Run(tmp_path / "plain", TrainConfig()).create()
    before = sorted(tmp_path.rglob("*"))
    assert message in one_line(run(*arguments))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_backbone_for_other_images(run, tmp_path):
    assert run("train", "--method", "finetune", "--config", "tiny.json", "--out", "plain").code == 0
    larger = run("train", "--method", "nearest", "--backbone", "plain", "--set", "image_size=16")
    assert "side 16, as in 'tiny', got one for 1 and 8" in one_line(larger)
    known = tmp_path / "plain" / "environment.json"
    starts = json.loads(known.read_text())
    for start in starts:
        start.update(in_channels=3, mean=3 * start["mean"], std=3 * start["std"])
    known.write_text(json.dumps(starts))
    colour = run("train", "--method", "nearest", "--backbone", "plain")
    assert "images of 1 channel(s) and side 8, as in 'tiny', got one for 3 and" in one_line(colour)


def test_help_teaches(run):
    output = nsl_process("fewshot", "--help").out
    assert "nsl fewshot --method dynamic --data cifar-fs" in output
    assert "about two minutes on two cores" in " ".join(output.split())
    assert "nsl fewshot eval runs/proto" in run("eval", "--help").out
    settings = run("train", "--settings").out
    assert re.search(r"^episodes +600", settings, re.MULTILINE)

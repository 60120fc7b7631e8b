"""``nsl train``, ``eval`` and ``merge`` as a user sees them, in processes that get killed."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from support.command import nsl, nsl_process, one_line
from support.fake_data import write_photos

import neural_similarity as ns
from neural_similarity.train import Run, TrainConfig
from neural_similarity.train.build import build_model
from neural_similarity.train.checkpoint import write_weights

SMALL = (
    "--set", "options.width=4", "--set", "options.hidden=8", "--set", "hidden=4",
    "--batch-size", 314, "--threads", 1,
)  # fmt: skip


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: nsl(capsys, monkeypatch, *arguments)


def start(*arguments, cwd, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "neural_similarity", *map(str, arguments)], cwd=cwd,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, **options,
    )  # fmt: skip


def wait_for(happened, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


def saved_step(folder):
    """The step of the last checkpoint; 0 if there is none."""
    if not (folder / "last.safetensors").exists():
        return 0
    names = [path.name for path in folder.glob("last-*.optimizer.safetensors")]
    return max((int(re.search(r"\d+", name)[0]) for name in names), default=0)


def steps(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines]


def test_three_networks_side_by_side(run, tmp_path):
    kinds = "none,static,dynamic"
    spans = ("--set", "predictor=pixel", "--set", "over=channels")
    done = run("train", *SMALL, *spans, "--similarity", kinds, "--epochs", 2, "--out", "all")
    assert done.code == 0, done.err
    assert Run.open(tmp_path / "all" / "dynamic").config.over == "channels"
    assert re.findall(r"^ (\w+)[\w ]+ \d+\.\d+%", done.out, re.MULTILINE) == kinds.split(",")
    for kind in kinds.split(","):
        assert (tmp_path / "all" / kind / "last.safetensors").is_file()
    assert (tmp_path / "all" / "comparison.png").read_bytes().startswith(b"\x89PNG")
    report = (tmp_path / "all" / "report.html").read_text()
    assert "static diagonal" in report
    assert "data:image/png;base64" in report
    again = run("train", *SMALL, *spans, "--similarity", kinds, "--epochs", 2, "--out", "all")
    assert "expected a new folder, got one that exists" in one_line(again)
    resumed = run("train", "--resume", "--out", "all", "--data-dir", tmp_path)
    assert resumed.code == 0
    said = [f"all/{kind} had finished training; nothing was trained\n" for kind in kinds.split(",")]
    assert resumed.out == "".join(said) + done.out
    other = run("train", *SMALL, "--similarity", kinds, "--epochs", 3, "--resume", "--out", "all")
    assert "expected the settings the runs began with" in one_line(other)


def test_processes_that_cannot_share_a_batch_leave_nothing(run, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    done = run("train", *SMALL, "--similarity", "none,static", "--out", "all")
    assert "a batch that can be divided among 3 processes" in one_line(done)
    assert not (tmp_path / "all").exists()


def test_a_recipe_and_an_option_can_be_given_again(run):
    """As torchrun does after a lost worker: the very same command."""
    given = ("--recipe", "authors", "--steps", 2, "--similarity", "dynamic", "--set", "hidden=4")
    command = ("train", *SMALL, *given, "--set", "predictor_options.batch_norm=true", "--out", "a")
    assert run(*command).code == 0
    resumed = run(*command, "--resume")
    assert resumed.code == 0, resumed.err
    other = run(*command, "--resume", "--set", "predictor_options.batch_norm=false")
    assert "different values for predictor_options" in one_line(other)


def test_a_run_from_a_file_is_evaluated_and_merged(run, tmp_path):
    (tmp_path / "a.toml").write_text('similarity = "static"\nepochs = 2\nlr = 0.05\n')
    done = run("train", "--config", "a.toml", *SMALL, "--seed", 3, "--tensorboard")
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "cnn9-digits-static-3"
    config = json.loads((folder / "config.json").read_text())
    assert (config["lr"], config["seed"], config["options"]) == (0.05, 3, {"width": 4, "hidden": 8})
    assert list((folder / "tensorboard").glob("events*"))

    printed = run("eval", folder)
    measured = json.loads(run("eval", folder, "--json").out)
    assert measured["fingerprint"] == Run.open(folder).test_set().fingerprint
    assert "copy" not in measured
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-1]
    assert measured["error"] == last["error"]
    assert f"error {measured['error']:.2%}" in printed.out

    assert run("merge", folder).code == 0
    plain = ns.create_model("cnn9", 10, in_channels=1, image_size=8, width=4, hidden=8).eval()
    plain.load_state_dict(load_file(folder / "merged.safetensors"))
    opened = Run.open(folder)
    images = opened.example(16)
    torch.testing.assert_close(plain(images), opened.load_model()(images))
    assert "got one that exists. Overwrite it with --force" in one_line(run("merge", folder))

    untrained = build_model(opened.config, 10, 1, 8).eval()
    write_weights(folder / "best.safetensors", untrained, {"step": 1})
    assert run("merge", folder, "--force", "--which", "best").code == 0
    plain.load_state_dict(load_file(folder / "merged.safetensors"))
    torch.testing.assert_close(plain(images), untrained(images))
    best = json.loads(run("eval", folder, "--which", "best", "--json").out)
    assert best["loss"] != measured["loss"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("train", "--model", "cnn99"), "Did you mean 'cnn9'"),
        (("train", "--model", "cnn99"), "nsl: --model: expected one of 'cnn10', "),
        (("train", "--data", "digit"), "Did you mean 'digits'"),
        (("train", "--data=digit"), "nsl: --data: expected one of 'cifar-fs', "),
        (("train", "--set", "data=digit"), "nsl: load_dataset: expected name to be one of"),
        (("train", "--data", "cifar10", "--data-dir", "."), "nsl data get cifar10"),
        (("train", "--similarity", "statc"), "Did you mean 'static'"),
        (("train", "--structure", "diag", "--similarity", "static"), "Did you mean 'diagonal'"),
        (("train", "--structure", "diag"), "Did you mean 'diagonal'"),
        (("train", "--structure", "orthogonal"), "with structure 'orthogonal', got none"),
        (("train", "--set", "structure=shift", "--similarity", "none"), "A plain network has no M"),
        (("train", "--set", "lr"), "expected key=value"),
        (("train", "--set", "options.widht=3"), "Did you mean 'width'"),
        (("train", "--model", "cnn4"), "expected image_size of at least 16, got 8"),
        (("train", "--resume"), "expected --out with --resume"),
        (("train", "--resume", "--out", "none"), "expected the folder of a run, got none"),
        (("train", "--resume", "--force", "--out", "x"), "got both"),
        (("train", "--force", "--epochs", "1", "--out", "mine"), "(letter.txt). It is left alone"),
        (("train", "--resume", "--threads", "1", "--out", "none"), "expected the folder of a run"),
        (
            ("train", "--resume", "--steps", "1", "--out", "mine"),
            "expected a run to resume, got",
        ),
        (("train", "--set", "epochs=inf"), "expected epochs to be a finite number"),
        (("train", "--epochs", "1", "--out", "mine"), "expected a new folder"),
        (("train", "--epochs", "1", "--out", "file/run"), "file"),
        (("train", "--config", "none.toml"), "expected a file"),
        (("train", "--nonsense"), "No such option"),
        (("eval", "mine"), "got a folder without config.json"),
        (("merge", "none"), "expected the folder of a run, got none"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_bad_input_ends_in_one_line_and_changes_nothing(run, tmp_path, arguments, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("a file")
    assert message in one_line(run(*arguments))
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "letter.txt", "mine"]


def test_only_runs_are_replaced(run, tmp_path):
    """A folder with a config.json of its own is not ours."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "config.json").write_text('{"my": "project"}')
    assert "It is left alone" in one_line(run("train", *SMALL, "--out", project, "--force"))
    (project / "config.json").write_text('{"model": "cnn9", "data": "digits"}')
    (project / "src").mkdir()
    assert "(src). It is left alone" in one_line(run("train", *SMALL, "--out", project, "--force"))
    assert (project / "src").is_dir()
    (project / "config.json").unlink()
    (project / "src").rmdir()
    (project / "last.safetensors").write_text("whose?")
    message = one_line(run("train", *SMALL, "--out", project, "--force"))
    assert "(last.safetensors). It is left alone" in message
    (project / "config.json").write_text('{"model": "cnn9", "data": "digits"}')
    for mine in ("llama.safetensors", "results/thesis.tex", "inspect/notes/a.txt"):
        (project / mine).parent.mkdir(exist_ok=True, parents=True)
        (project / mine).write_text("mine")
        assert "It is left alone" in one_line(run("train", *SMALL, "--out", project, "--force"))
        (project / mine).unlink()
    first = run("train", *SMALL, "--epochs", 1, "--similarity", "none,static", "--out", "two")
    assert first.code == 0, first.err
    assert "got a folder of several: two/none, two/static" in one_line(run("eval", "two"))
    (tmp_path / "two" / "none" / "notes.txt").write_text("mine")
    again = ("train", *SMALL, "--epochs", 1, "--out", "two", "--force")
    assert "(notes.txt). It is left alone" in one_line(run(*again))
    (tmp_path / "two" / "none" / "notes.txt").unlink()
    assert run(*again).code == 0
    assert not (tmp_path / "two" / "none").exists()


def test_a_run_goes_on_with_what_was_not_said_again(run, tmp_path):
    assert run("train", *SMALL, "--epochs", 1, "--out", "run").code == 0
    assert run("train", "--resume", "--out", "run", "--epochs", 1).code == 0
    assert run("train", "--resume", "--out", "run", "--data-dir", tmp_path).code == 0
    line = one_line(run("train", "--resume", "--out", "run", "--epochs", 2))
    assert "got different values for epochs. Leave them out" in line
    (tmp_path / "run" / "environment.json").write_text("[")
    assert "environment.json: expected JSON" in one_line(run("train", "--resume", "--out", "run"))


def test_help_names_the_defaults(run):
    shown = " ".join(run("train", "--help").out.split())
    for name in ("model", "data", "structure", "epochs", "batch_size", "seed"):
        default, option = getattr(TrainConfig(), name), name.replace("_", "-")
        text = f"{default:g}" if isinstance(default, float) else str(default)
        assert re.search(rf"--{option} <[^-]*\(default: {text}\)", shown), name


@pytest.mark.parametrize("group", [(), ("data",), ("fewshot",), ("reproduce",)])
def test_overviews_have_whole_sentences(group, run):
    commands = run(*group, "--help").out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


def test_help_teaches_and_answers_at_once():
    began = time.monotonic()
    overview = nsl_process("--help")
    assert overview.code == 0
    for command in ("train", "eval", "merge"):
        assert command in overview.out
        assert f"nsl {command}" in nsl_process(command, "--help").out
    code = "import sys; sys.argv = ['nsl', '--help']\n" \
        "import atexit; atexit.register(lambda: print('torch' in sys.modules))\n" \
        "from neural_similarity.cli import main; main()"  # fmt: skip
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.stdout.splitlines()[-1] == "False"
    assert time.monotonic() - began < 30  # generous: the promise is kept by not importing torch
    assert nsl_process("--version").out == f"neural-similarity {ns.__version__}\n"


@pytest.mark.slow
def test_killed_and_resumed_ends_in_the_same_weights(tmp_path):
    arguments = ("train", *SMALL, "--similarity", "dynamic", "--epochs", 10)
    arguments += ("--set", "checkpoint_minutes=0", "--set", "log_every=1")
    whole = nsl_process(*arguments, "--out", "whole", cwd=tmp_path)
    assert whole.code == 0, whole.err
    process = start(*arguments, "--resume", "--out", "broken", cwd=tmp_path)
    wait_for(lambda: saved_step(tmp_path / "broken") >= 3, process)
    process.kill()
    process.communicate()
    assert saved_step(tmp_path / "broken") < 40
    resumed = nsl_process("train", "--resume", "--out", "broken", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    starts = json.loads((tmp_path / "broken" / "environment.json").read_text())
    assert len(starts) == 2
    a, b = (load_file(tmp_path / name / "last.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert steps(tmp_path / "whole") == steps(tmp_path / "broken")


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_stopping_leaves_a_checkpoint_and_says_how_to_continue(tmp_path, number, forks):
    arguments = ("train", *SMALL, "--epochs", 2000, "--set", "log_every=1", "--out", "run")
    setup = ("support.forks:interrupt_at", "run/metrics.jsonl", 6, number)
    ended = forks.nsl(*arguments, "--set", "eval_every=1000", cwd=tmp_path, setup=setup)
    assert ended.code == 130
    assert ended.err == "nsl: stopped. Continue with: nsl train --resume --out run\n"
    assert saved_step(tmp_path / "run") == steps(tmp_path / "run")[-1]
    assert Run.open(tmp_path / "run").load_model() is not None


def test_a_signal_to_all_processes_leaves_a_checkpoint(tmp_path):
    """As schedulers send it: workers that decode images get it too."""
    folder = write_photos(tmp_path / "photos", each=10)
    arguments = ("train", *SMALL, "--data", "imagefolder", "--data-dir", folder, "--epochs", 5000)
    arguments += ("--set", "image_size=8", "--set", "workers=1", "--set", "log_every=1")
    process = start(*arguments, "--out", "run", cwd=tmp_path, start_new_session=True)
    wait_for(lambda: saved_step(tmp_path / "run"), process)
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.endswith("nsl: stopped. Continue with: nsl train --resume --out run\n")
    assert saved_step(tmp_path / "run") == steps(tmp_path / "run")[-1]


@pytest.mark.slow
def test_a_full_disk_ends_in_one_line_with_the_last_checkpoint_intact(tmp_path):
    begun = nsl_process("train", *SMALL, "--epochs", 1, "--out", "run", cwd=tmp_path)
    assert begun.code == 0
    config = tmp_path / "run" / "config.json"
    config.write_text(config.read_text().replace('"epochs": 1.0', '"epochs": 3.0'))
    last = (tmp_path / "run" / "last.safetensors").read_bytes()

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    ended = nsl_process("train", "--resume", "--out", "run", cwd=tmp_path, preexec_fn=small_files)
    assert "bytes, got File too large. The old file is unchanged" in one_line(ended)
    assert (tmp_path / "run" / "last.safetensors").read_bytes() == last
    assert not list((tmp_path / "run").glob(".*"))
    resumed = nsl_process("train", "--resume", "--out", "run", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert steps(tmp_path / "run")[-1] == 12

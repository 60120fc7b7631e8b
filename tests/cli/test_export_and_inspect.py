"""``nsl export`` and ``nsl inspect`` as a user sees them."""

import json
import re
import shutil

import pytest
import torch
from matplotlib.image import imread
from support.command import nsl, one_line
from support.fake_data import write_image, write_photos

from neural_similarity.fewshot import FewShotConfig, FewShotRun, train_method
from neural_similarity.train import Run, TrainConfig, train

SMALL = {"options": {"width": 4, "hidden": 8}, "hidden": 4, "batch_size": 314, "steps": 2}
KINDS = {
    "none": {"similarity": "none"},
    "static": {"similarity": "static", "structure": "kernel_shape"},
    "dynamic": {"similarity": "dynamic", "structure": "diagonal"},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of each kind; tests work on copies."""
    folder = tmp_path_factory.mktemp("runs")
    for kind, settings in KINDS.items():
        train(TrainConfig(**SMALL, **settings, threads=1), folder / kind)
    return folder


@pytest.fixture
def run(trained, capsys, monkeypatch, tmp_path):
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: nsl(capsys, monkeypatch, *arguments)


def test_merging_does_not_replace_a_checkpoint(run, tmp_path):
    before = (tmp_path / "static" / "last.safetensors").read_bytes()
    ended = run("merge", "static", "--out", "static/last.safetensors", "--force")
    assert "expected another file than a checkpoint of the run" in one_line(ended)
    assert (tmp_path / "static" / "last.safetensors").read_bytes() == before
    nowhere = run("merge", "static", "--out", "no/such/merged.safetensors")
    assert "got no folder no/such. Create it, or choose another" in one_line(nowhere)


def files(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_export_to_onnx_with_what_a_user_needs(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    done = run("export", "static")
    assert done.code == 0, done.err
    assert re.fullmatch(r"static/model.onnx: onnx, [\d,]+ bytes, .* parameters; .*\n", done.out)
    assert done.err == ""
    opened = Run.open(tmp_path / "static")
    session = onnxruntime.InferenceSession(tmp_path / "static" / "model.onnx")
    metadata = {k: json.loads(v) for k, v in session.get_modelmeta().custom_metadata_map.items()}
    mean, std = opened.normalisation()
    assert metadata == {
        "classes": list(opened.classes()), "input_size": [1, 8, 8], "mean": list(mean),
        "std": list(std), "crop": 1.0, "interpolation": "bilinear", "model": "cnn9",
    }  # fmt: skip
    images = opened.example(5)
    expected = opened.load_model()(images).detach()
    (scores,) = session.run(None, {"image": images.numpy()})
    # float32 in another order, through ten layers: as the command itself allows
    tolerance = 1e-4 * expected.abs().max().item()
    torch.testing.assert_close(torch.from_numpy(scores), expected, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_export_a_dynamic_run_to_a_chosen_file(run, tmp_path):
    done = run("export", "dynamic", "--format", "torch-export", "--which", "best", "--out", "m.pt2")
    assert done.code == 0, done.err
    assert done.out.startswith("m.pt2: torch-export")
    images = Run.open(tmp_path / "dynamic").example(5)
    expected = Run.open(tmp_path / "dynamic").load_model("best")(images)
    torch.testing.assert_close(torch.export.load(tmp_path / "m.pt2").module()(images), expected)


def test_nothing_is_exported_over_a_file_without_force(run, tmp_path):
    (tmp_path / "m.pt2").write_text("mine")
    command = ("export", "none", "--format", "torch-export", "--out", "m.pt2")
    assert "expected a new file, got 'm.pt2'" in one_line(run(*command))
    assert (tmp_path / "m.pt2").read_text() == "mine"
    assert run(*command, "--force").code == 0
    assert (tmp_path / "m.pt2").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("export", "nowhere"), "nowhere: expected the folder of a run, got none"),
        (("export", "static", "--format", "onxn"), "--format to be one of .*Did you mean 'onnx'"),
        (("export", "static", "--which", "first"), "which to be one of 'best', 'last'"),
        (("export", "static", "--out", "m.pt2"), "a file that ends in '.onnx' for onnx"),
        (("export", "none", "--format", "torch-export", "--out", "a/m.pt2"), "a: no such folder"),
        (("inspect", "nowhere"), "nowhere: expected the folder of a run, got none"),
        (("inspect", "static", "--which", "first"), "which to be one of 'best', 'last'"),
        (
            ("inspect", "static", "--out", "dynamic"),
            "dynamic: expected a new or empty folder, got one",
        ),
        (("inspect", "static", "--out", "static/config.json", "--force"), "got a file"),
    ],
)
def test_bad_input_changes_nothing(arguments, error, run, tmp_path):
    before = files(tmp_path)
    assert re.search(error, one_line(run(*arguments)))
    assert files(tmp_path) == before


def table(out):
    rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines()]
    return {row[0]: row for row in rows if len(row) == 8}


def test_inspect_a_static_run(run, tmp_path):
    done = run("inspect", "static")
    assert done.code == 0, done.err
    rows = table(done.out)
    assert "parameters of M" in done.out
    # 4 kernels of 9 taps, 9 parameters of D and of R each
    kind, kernel, similarity, learned, parameters, macs, distance = rows["stages.0.0"][1:]
    assert (kind, kernel, similarity) == ("Conv2d", "3×3", "static kernel_shape of diagonal")
    assert (learned, parameters, macs) == ("18", "54", f"{64 * 4 * 9:,}")
    assert float(distance) >= 0
    model = Run.open(tmp_path / "static").load_model()
    total = sum(p.numel() for p in model.parameters())
    assert f"parameters during training: {total:,}\n" in done.out
    assert f"parameters when deployed: {total - 9 * 18:,}\n" in done.out
    assert sum(int(row[5].replace(",", "")) for row in list(rows.values())[1:]) == total
    folder = tmp_path / "static" / "inspect"
    assert {path.name for path in folder.iterdir()} == {"static.png", "report.html"}
    assert imread(folder / "static.png").shape[2] == 4
    page = (folder / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "static kernel_shape of diagonal" in page


def test_what_a_kill_left_is_not_the_users(run, tmp_path):
    (tmp_path / "none" / "inspect" / ".nsl-scratch-killed").mkdir(parents=True)
    done = run("inspect", "none")
    assert done.code == 0, done.err
    assert [path.name for path in (tmp_path / "none" / "inspect").iterdir()] == ["report.html"]


def test_a_full_disk_is_told_of_the_file(run, monkeypatch):
    from neural_similarity.export import torch_export

    def full(model, example, path, metadata, inputs, outputs):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(torch_export, "write", full)
    line = one_line(run("export", "static", "--format", "torch-export"))
    assert line == "nsl: static/model.pt2: No space left on device"


@pytest.mark.slow
def test_inspect_a_dynamic_run_again(run, tmp_path):
    command = ("inspect", "dynamic", "--which", "best", "--out", "seen")
    assert run(*command).code == 0
    assert {path.name for path in (tmp_path / "seen").iterdir()} == {"dynamic.png", "report.html"}
    (tmp_path / "seen" / "dynamic.png").write_text("mine")
    assert "seen: expected a new or empty folder, got one with files" in one_line(run(*command))
    assert (tmp_path / "seen" / "dynamic.png").read_text() == "mine"
    assert run(*command, "--force").code == 0
    assert imread(tmp_path / "seen" / "dynamic.png").shape[2] == 4


def test_inspect_a_plain_run(run, tmp_path):
    done = run("inspect", "none")
    assert done.code == 0, done.err
    assert "of these, similarity: 0\n" in done.out
    assert [p.name for p in (tmp_path / "none" / "inspect").iterdir()] == ["report.html"]


def test_inspect_a_few_shot_run(run, tmp_path):
    """What it tests with is shown, and exporting or merging it names the other ways."""
    settings = FewShotConfig(
        method="dynamic", data="glyphs", options={"width": 4}, hidden=4, steps=1, n_query=1,
        val_episodes=2, threads=1,
    )  # fmt: skip
    train_method(settings, tmp_path / "few")
    done = run("inspect", "few")
    assert done.code == 0, done.err
    network = FewShotRun.open(tmp_path / "few").load_network("best").backbone
    total = sum(p.numel() for p in network.parameters())
    assert f"parameters during training: {total:,}\n" in done.out
    assert "dynamic diagonal" in done.out
    assert "best weights" in (tmp_path / "few" / "inspect" / "report.html").read_text()
    assert imread(tmp_path / "few" / "inspect" / "dynamic.png").shape[2] == 4
    for command in ("export", "merge", "eval"):
        assert "nsl adapt --backbone" in one_line(run(command, "few"))


@pytest.mark.parametrize("command", ["export", "inspect"])
def test_help_teaches(command, run):
    done = run(command, "--help")
    assert done.code == 0
    assert f"\n    nsl {command} runs/static\n" in done.out
    assert "--force" in done.out


def test_photographs_are_exported_with_their_crop_and_after_the_data_changed(run, tmp_path):
    photos = write_photos(tmp_path / "photos", each=5)
    settings = ("--steps", "1", "--batch-size", "4", "--set", "image_size=16")
    data = ("--data", "imagefolder", "--data-dir", photos, "--set", "options.width=4")
    assert run("train", *data, *settings, "--out", "own").code == 0
    write_image(photos / "cat" / "new.png")
    done = run("export", "own", "--format", "torch-export")
    assert done.code == 0, done.err
    extra = {"metadata.json": ""}
    torch.export.load(tmp_path / "own" / "model.pt2", extra_files=extra)
    metadata = json.loads(extra["metadata.json"])
    assert float(metadata["crop"]) == 0.875

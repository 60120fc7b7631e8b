"""``nsl adapt`` as a user sees it: what it writes, and what it refuses."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest
from support.adapt_cases import COUNTS, PLAIN, THEIRS
from support.command import one_line

import neural_similarity as ns
from neural_similarity.adapt import deliver as _adapted
from neural_similarity.adapt import methods
from neural_similarity.cli.shared import progress

pytest.importorskip("onnxruntime")
FILES = [
    "README.txt", "calibration.png", "confusion.png", "examples.safetensors", "labels.json",
    "model.onnx", "model.safetensors", "report.html",
]  # fmt: skip
STATIC = (*PLAIN, "--method", "static")


@pytest.fixture
def run(run_beside_images):
    return run_beside_images


def compared(*methods):
    """The line that says how good the methods are, as a pattern."""
    return "compared: " + ", ".join(rf"{method} [\d.]+%" for method in methods) + r"\n"


def test_a_command_that_is_asked_to_end_leaves_nothing_behind(run, tmp_path, monkeypatch):
    def write_some(classifier, shown, new, out, onnx, callback):
        (new / "half").write_text("a fil")
        os.kill(os.getpid(), signal.SIGTERM)

    def ours(number, frame):
        raise AssertionError("the command left the signal to others")

    monkeypatch.setattr(_adapted, "write_all", write_some)
    before = signal.signal(signal.SIGTERM, ours)
    try:
        there = sorted(tmp_path.iterdir())
        ended = run("adapt", "mine", "--out", "birds", "--method", "proto", "--folds", "2",
                    "--backbone", "plain.safetensors")  # fmt: skip
        assert ended.code == 128 + signal.SIGTERM
        assert [path for path in sorted(tmp_path.iterdir()) if path.name != "cache"] == there
        assert signal.getsignal(signal.SIGTERM) is ours
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("place", ["adapt.image_folder.read_classes", "adapt.deliver.write_all"])
def test_ctrl_c_is_answered_with_a_line(run, tmp_path, monkeypatch, place):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"neural_similarity.{place}", stop)
    there = sorted(tmp_path.iterdir())
    ended = run("adapt", "mine", "--out", "birds", "--method", "proto", "--folds", "1", *PLAIN)
    assert (ended.code, ended.out) == (130, "")
    assert ended.err == "nsl: stopped; nothing was written\n"
    assert [path for path in sorted(tmp_path.iterdir()) if path.name != "cache"] == there


def test_the_bar_moves_while_files_are_written(run, monkeypatch):
    stages = []

    class Bar(progress.StageBar):
        def __call__(self, *arguments):
            super().__call__(*arguments)
            stages.append((self.stage, self.bar.tasks[0].total))

    monkeypatch.setattr(progress, "StageBar", Bar)
    monkeypatch.setattr(_adapted, "export_model", lambda *arguments, **options: 0.0)
    done = run("adapt", "mine", "--out", "birds", "--method", "proto", "--folds", "2", *PLAIN)
    assert done.code == 0, done.err
    assert list(dict.fromkeys(stages)) == [
        ("images", 12), ("fits", 2), ("writing", None), ("model.onnx", None),
    ]  # fmt: skip
    assert stages[-1] == ("writing", None)


def test_adapt_writes_everything_and_says_how_good_it_is(run, tmp_path):
    (tmp_path / "mine" / "kind 1" / "broken.jpg").write_bytes(b"\xff\xd8 no")
    whole = sorted((tmp_path / "mine" / "kind 2").iterdir())[0].read_bytes()
    (tmp_path / "mine" / "kind 2" / "half.png").write_bytes(whole[: len(whole) // 2])
    done = run("adapt", "mine", "--out", "birds", "--backbone", "plain.safetensors")
    assert done.code == 0, done.err
    assert sorted(path.name for path in Path("birds").iterdir()) == FILES
    assert re.search(r"kind 1 +3 +3 +\d", done.out)
    assert re.search(
        r"method (\w+), by 5-fold cross-validation of 12 images:\ncorrect in tests: ([\d.]+%)\n"
        r"estimated on new images: [\d.]+% \(95% interval [\d.]+% – [\d.]+%\), corrected as the "
        r"report explains\n(.*\n)*compared: (.*, )?\1 \2",
        done.out,
    )
    assert re.search(compared("ensemble", "linear", "ridge", "proto", "static"), done.out)
    assert re.search(r"left out: dynamic: needs a backbone with a dynamic similarity\n", done.out)
    assert re.search(r"left out: laplace: needs the classifier that the backbone", done.out)
    assert not list(tmp_path.glob(".writing*"))
    labels = json.loads(Path("birds/labels.json").read_text())
    assert labels["classes"] == ["kind 0", "kind 1", "kind 2"]
    assert labels["preprocessing"]["image_size"] == 8
    report = Path("birds/report.html").read_text()
    for text in ("broken.jpg", "half.png", "Its card.", "nsl predict birds", "data:image/png",
                 "95% interval", "left out"):  # fmt: skip
        assert text in report, text
    learned = ns.FewShotClassifier.load("birds")
    assert learned.cross_validation_.tested == sum(COUNTS)
    assert set(Path("birds").iterdir()) == {Path("birds") / name for name in FILES}


def test_the_result_as_json(run):
    done = run("adapt", "mine", "--out", "birds", *PLAIN, "--no-onnx", "--folds", 2, "--json")
    found = json.loads(done.out)
    stored = ns.FewShotClassifier.load("birds").cross_validation_.to_dict()
    assert found["classes"] == ["kind 0", "kind 1", "kind 2"]
    same = ("method", "accuracy", "interval", "by_method", "tested", "left_out", "note")
    assert found["tested_by_class"] == list(COUNTS)
    assert sum(found["right_by_class"]) == round(found["by_method"][found["method"]] * sum(COUNTS))
    assert {name: found[name] for name in same} == {
        name: list(stored[name]) if name == "interval" else stored[name] for name in same
    }


def test_what_takes_minutes_is_left_out_with_a_word(run, monkeypatch):
    monkeypatch.setattr(methods, "_MOST_WORK", 1_000)
    done = run("adapt", "mine", "--out", "birds", *PLAIN, "--no-onnx")
    assert done.code == 0, done.err
    assert re.search(compared("ensemble", "linear", "ridge", "proto"), done.out)
    assert re.search(r"left out: static: takes minutes .* with --method static", done.out)
    assert "takes minutes on this backbone" in Path("birds/report.html").read_text()


def test_one_image_a_class(run, tmp_path):
    for folder in (tmp_path / "mine").iterdir():
        for extra in sorted(folder.iterdir())[1:]:
            extra.unlink()
    done = run("adapt", "mine", "--out", "birds", "--backbone", "plain.safetensors", "--no-onnx")
    assert done.code == 0, done.err
    assert "\nmethod ensemble\nNot tested: every class has a single image. So the acc" in done.out
    assert sorted(path.name for path in Path("birds").iterdir()) == [
        name for name in FILES if not name.endswith(("png", "onnx"))
    ]


def test_fewer_folds_than_asked_for_are_named(run):
    quick = ("adapt", "mine", *PLAIN, "--method", "proto", "--no-onnx", "--out", "birds")
    done = run(*quick, "--folds", 50)
    assert "\nfolds: 5 instead of 50; no class has more images that differ\n" in done.out
    assert "folds:" not in run(*quick, "--folds", 5, "--force").out


def test_images_beside_the_class_folders_are_named(run):
    image = sorted(Path("mine/kind 0").iterdir())[0]
    for name in ("b.PNG", "a.png", ".hidden.png", "notes.txt"):
        shutil.copy(image, Path("mine") / name)
    done = run("adapt", "mine", *PLAIN, "--method", "proto", "--no-onnx", "--out", "birds")
    assert done.code == 0
    assert "skipped 2 image(s) outside the class folders; the first is 'a.png'" in done.err


def test_a_copy_in_another_class_is_one_group(run):
    image = sorted(Path("mine/kind 0").iterdir())[0]
    shutil.copy(image, "mine/kind 1/copy.png")
    done = run("adapt", "mine", *PLAIN, "--method", "proto", "--no-onnx", "--out", "birds")
    assert "\ncopies with different labels: 1 group, in the report\n" in done.out


def test_features_that_are_no_numbers_end_in_one_line(run, tmp_path):
    (tmp_path / "nans.py").write_text(
        "from torch import nn\n"
        "class Broken(nn.Module):\n"
        "    def forward(self, images):\n"
        "        return images.flatten(1) * float('nan')\n"
    )
    refused = one_line(run(*THEIRS, "nans:Broken", "--method", "proto"))
    assert "backbone: expected finite features, got NaN or infinity for 12 of 12" in refused
    assert not Path("birds").exists()


def test_options_of_static_reach_it(run):
    options = ("--structure", "diagonal", "--scope", "channel", "--folds", "1", "--no-onnx")
    for layers, kept in (("50%", 0.5), ("0.0,1.0", ["0.0", "1.0"])):
        done = run("adapt", "mine", *STATIC, *options, "--layers", layers, "--out", "b", "--force")
        assert done.code == 0, done.err
        settings = ns.FewShotClassifier.load("b").get_params()
        assert settings["layers"] == kept
        assert (settings["structure"], settings["scope"]) == ("diagonal", "channel")


def _split(folder):
    for part in ("train", "test"):
        (folder / "split" / part / "kind 0").mkdir(parents=True)
        shutil.copytree(folder / "mine" / "kind 1", folder / "split" / part / "kind 1")


def _file(folder):
    (folder / "afile").write_text("not a folder")


def _empty(folder):
    (folder / "mine" / "kind 9").mkdir()


def _only_one(folder):
    (folder / "mine" / "kind 0").rename(folder / "mine" / ".hidden")
    (folder / "mine" / "kind 1").rename(folder / "mine" / ".gone")


def _no_images(folder):
    for file in folder.glob("mine/*/*.png"):
        file.rename(file.with_suffix(".txt"))


def _all_broken(folder):
    for file in folder.glob("mine/kind 1/*.png"):
        file.write_bytes(b"no")


def _not_utf8(folder):
    shutil.copytree(
        folder / "mine" / "kind 1", os.fsdecode(os.fsencode(folder / "mine/caf") + b"\xe9")
    )


@pytest.mark.parametrize(
    ("change", "arguments", "text"),
    [
        (None, ("none", *PLAIN), "none: expected a folder with one folder per class, got no fold"),
        (None, ("mine/kind 0", *PLAIN), "at least two classes, got none and "),
        (_only_one, ("mine", *PLAIN), "at least two classes, got only 'kind 2'"),
        (_empty, ("mine", *PLAIN), "in every class, got none in 'kind 9'"),
        (_all_broken, ("mine", *PLAIN), "in every class, got none in 'kind 1'"),
        (_no_images, ("mine", *PLAIN), "expected images in mine/CLASS/, got none"),
        (None, ("mine", *PLAIN, "--method", "protos"), "--method to be one of"),
        (None, ("mine", *PLAIN, "--method", "dynamic"), "needs a backbone with a dynamic"),
        (None, ("mine", "--backbone", "nothing"), "or one of ['cnn4-dynamic', "),
        (None, ("mine", *PLAIN, "--image-size", "40"), "expected images of shape"),
        (None, ("mine", *PLAIN, "--mean", "0.5", "--std", "0.5"), "expected images of shape"),
        (None, ("mine", *PLAIN, "--mean", "half"), "numbers separated by commas, got 'half'"),
        (None, ("mine", *PLAIN, "--mean", "nan,0,0"), "expected finite mean and std, with std abo"),
        (None, ("mine", *PLAIN, "--classifier", "fc"), "expected no classifier with 'plain.safe"),
        (
            None,
            ("mine", *PLAIN, "--layers", "50%"),
            "layers only with method 'static', got",
        ),
        (None, ("mine", *STATIC, "--structure", "x"), "structure to be one of"),
        (None, ("mine", *STATIC, "--layers", "150%"), "expected layers to be a share"),
        (None, ("mine", *STATIC, "--layers", "head,neck"), "No layer's name ends in it"),
        (_split, ("split", *PLAIN), "that is already split into test, train. Give split/train"),
        (_not_utf8, ("mine", *PLAIN), r"expected class names in UTF-8, got 'caf\udce9'"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(run, tmp_path, change, arguments, text):
    if change:
        change(tmp_path)
    ended = run("adapt", *arguments, "--out", "birds")
    assert ended.code == 2
    assert text in ended.err.strip().splitlines()[-1]
    assert "Traceback" not in ended.err
    assert not Path("birds").exists()
    assert not list(tmp_path.glob(".writing*"))


def test_an_output_folder_that_cannot_be_made_is_noticed_before_training(
    run, tmp_path, monkeypatch
):
    _file(tmp_path)
    monkeypatch.setattr(ns.FewShotClassifier, "fit", None)
    refused = one_line(run("adapt", "mine", *PLAIN, "--out", "afile/birds"))
    assert "got a path through" in refused
    assert (tmp_path / "afile").read_text() == "not a folder"


def test_nothing_is_overwritten(run, tmp_path):
    quick = ("adapt", "mine", *PLAIN, "--method", "proto", "--no-onnx")
    assert run(*quick, "--out", "birds").code == 0
    before = Path("birds/model.safetensors").stat().st_mtime_ns
    assert "birds: expected a new folder, got one that exists" in one_line(
        run(*quick, "--out", "birds")
    )
    assert Path("birds/model.safetensors").stat().st_mtime_ns == before
    assert run(*quick, "--out", "birds", "--force").code == 0
    shutil.copytree("mine", "birds/images")
    within = one_line(run("adapt", "birds/images", *quick[2:], "--out", "birds", "--force"))
    assert "got 'images' as well. Nothing was changed" in within
    assert len(list(Path("birds/images").rglob("*.png"))) == sum(COUNTS)
    shutil.rmtree("birds/images")
    assert "Nothing was changed" in one_line(run(*quick, "--out", "mine", "--force"))
    assert "expected a folder with model.safetensors" in one_line(run("predict", "mine", "mine"))
    assert "expected a folder with model.safetensors" in one_line(run("predict", "none", "mine"))
    missing = run("predict", "birds", "no.png")
    assert missing.code == 2
    assert missing.err.startswith("nsl: no.png: expected an image file, got no file with this name")
    assert "*.bmp: expected an image" in one_line(run("predict", "birds", "*.bmp"))


@pytest.mark.parametrize("out", ["mine/model", "mine", "elsewhere/model"])
def test_an_output_folder_among_the_images_is_refused(run, out):
    Path("elsewhere").symlink_to("mine")
    before = sorted(Path("mine").rglob("*"))
    refused = one_line(run("adapt", "mine", *PLAIN, "--out", out, "--force"))
    assert f"{out}: expected a folder outside mine, got one inside" in refused
    assert sorted(Path("mine").rglob("*")) == before


def test_a_classifier_among_the_classes_is_refused(run, birds):
    shutil.copytree(birds, "mine/model")
    refused = one_line(run("adapt", "mine", *PLAIN, "--out", "birds"))
    assert "expected folders of images, got a classifier from nsl adapt in 'model'" in refused
    assert not Path("birds").exists()


def test_into_the_folder_where_one_stands(run, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir(empty)
    quick = ("adapt", "../mine", "--backbone", "../plain.safetensors", "--method", "proto")
    for more in ((), ("--force",)):
        assert run(*quick, "--no-onnx", "--out", ".", *more).code == 0
        assert sorted(file.name for file in empty.iterdir()) == [
            name for name in FILES if name != "model.onnx"
        ]
    assert run("predict", ".", "../mine").code == 0


def test_a_damaged_file_whose_name_is_no_text(run, tmp_path):
    place = os.fsencode(tmp_path / "mine" / "kind 0")
    with open(place + b"/caf\xe9.png", "wb") as file:  # noqa: PTH123 (a path of bytes)
        file.write(b"damaged")
    ended = run("adapt", "mine", "--out", "birds", "--method", "proto", *PLAIN, "--no-onnx")
    assert ended.code == 0, ended.err
    assert r"caf\udce9.png" in (tmp_path / "birds" / "report.html").read_text(encoding="utf-8")


def test_a_full_disk_is_told_without_options_that_adapt_lacks(run, tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("neural_similarity.train.checkpoint.write_file", full)
    said = one_line(run("adapt", "mine", "--out", "birds", "--method", "proto", *PLAIN))
    assert "No space left on device" in said
    assert "then try again" in said
    assert "--resume" not in said
    assert not (tmp_path / "birds").exists()

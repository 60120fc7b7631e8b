"""``nsl adapt`` and ``nsl predict`` as a user meets them, and the ONNX file without us."""

import json
import os
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.adapt_cases import METHODS, backbone, pictures
from support.command import nsl, nsl_process, one_line

import neural_similarity as ns
from neural_similarity.adapt import deliver as _adapted
from neural_similarity.adapt import methods, save_backbone
from neural_similarity.ops.similarity_conv import compiled

pytest.importorskip("onnxruntime")
GUIDE = (Path(__file__).parents[2] / "docs" / "adapt.md").read_text()
FILES = [
    "README.txt", "calibration.png", "confusion.png", "examples.safetensors", "labels.json",
    "model.onnx", "model.safetensors", "report.html",
]  # fmt: skip
COUNTS = (4, 3, 5)
PLAIN = ("--backbone", "plain.safetensors")
STATIC = (*PLAIN, "--method", "static")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """The command, beside a folder of images and backbones of both kinds."""
    monkeypatch.chdir(tmp_path)
    compiled.load()  # from the usual cache, before there is an empty one
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images, labels = pictures(COUNTS, size=(12, 9))
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (tmp_path / "mine" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(tmp_path / "mine" / label / f"{number}.png")
    for name, similarity in (("plain", None), ("dynamic", METHODS["dynamic"])):
        made = backbone(similarity)
        save_backbone(
            f"{name}.safetensors", made.module, made.source, made.preprocessing, card="Its card."
        )
    return lambda *arguments: nsl(capsys, monkeypatch, *arguments)


def photos(folder):
    """New images, of all that cameras do: turned, grey, with a palette, wide, tall."""
    folder.mkdir()
    images, _ = pictures((3, 3, 3), seed=8)
    for number, image in enumerate(images):
        picture = Image.fromarray(image)
        if number % 3 == 0:
            exif = Image.Exif()
            exif[0x0112] = 6  # to be turned by a quarter
            picture.transpose(Image.Transpose.ROTATE_90).save(folder / f"{number}.png", exif=exif)
        else:
            picture.convert("P" if number % 3 == 1 else "RGB").save(folder / f"{number}.png")
    Image.fromarray(images[0]).convert("L").resize((300, 200)).save(folder / "wide.jpg")
    Image.fromarray(images[4]).resize((40, 310)).save(folder / "tall.webp")
    return sorted(folder.iterdir())


def test_a_command_that_is_asked_to_end_leaves_nothing_behind(run, tmp_path, monkeypatch):
    def write_some(classifier, shown, new, out, onnx):
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


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name == "linear" else pytest.mark.slow)
        for name in METHODS
        if name != "laplace"
    ],
)
def test_the_onnx_file_alone_gives_the_same_answers(run, tmp_path, method, monkeypatch):
    """By the very lines of docs/adapt.md: onnxruntime, NumPy and Pillow."""
    base = "dynamic" if method == "dynamic" else "plain"
    done = run("adapt", "mine", "--out", "birds", "--method", method, "--folds", "2",
               "--backbone", f"{base}.safetensors")  # fmt: skip
    assert done.code == 0, done.err
    files = photos(tmp_path / "new")
    predicted = run("predict", "birds", "new", "--json", "--top", "3")
    answers = [json.loads(line) for line in predicted.out.splitlines()]
    assert [answer["image"] for answer in answers] == [f"new/{file.name}" for file in files]
    snippet = re.findall(r"```python\n(import json.*?)```", GUIDE, re.DOTALL)[0]
    for file, answer in zip(files, answers, strict=True):
        (tmp_path / "photo.jpg").write_bytes(file.read_bytes())
        known = {}
        exec(compile(snippet, "docs/adapt.md", "exec"), known)
        assert known["answer"] == answer["class"]
        expected = {one["class"]: one["probability"] for one in answer["top"]}
        found = dict(
            zip(known["metadata"]["classes"], known["probabilities"][0].tolist(), strict=True)
        )
        assert found == pytest.approx(expected, abs=1e-4)  # float32, summed in another order
    assert len({answer["class"] for answer in answers}) == 3


def test_adapt_writes_everything_and_says_how_good_it_is(run, tmp_path):
    (tmp_path / "mine" / "kind 1" / "broken.jpg").write_bytes(b"\xff\xd8 no")
    whole = sorted((tmp_path / "mine" / "kind 2").iterdir())[0].read_bytes()
    (tmp_path / "mine" / "kind 2" / "half.png").write_bytes(whole[: len(whole) // 2])
    done = run("adapt", "mine", "--out", "birds", "--backbone", "plain.safetensors")
    assert done.code == 0, done.err
    assert sorted(path.name for path in Path("birds").iterdir()) == FILES
    assert re.search(r"kind 1 +3 +3 +\d", done.out)
    assert re.search(
        r"method \w+: accuracy [\d.]+% \(95% interval [\d.]+% – [\d.]+%\), by 5-fold", done.out
    )
    assert re.search(
        r"compared: linear [\d.]+%, ridge [\d.]+%, proto [\d.]+%, static [\d.]+%\n", done.out
    )
    assert re.search(r"left out: .*method 'dynamic' needs a backbone with a dynamic sim", done.out)
    assert re.search(r"left out: .*method 'laplace' needs the classifier of base", done.out)
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


def test_what_takes_minutes_is_left_out_with_a_word(run, monkeypatch):
    monkeypatch.setattr(methods, "_MOST_WORK", 1_000)
    done = run("adapt", "mine", "--out", "birds", *PLAIN, "--no-onnx")
    assert done.code == 0, done.err
    assert re.search(r"compared: linear [\d.]+%, ridge [\d.]+%, proto [\d.]+%\n", done.out)
    assert re.search(r"static \(.* takes minutes .* with --method static", done.out)
    assert "takes minutes on a backbone of" in Path("birds/report.html").read_text()


def test_one_image_a_class(run, tmp_path):
    for folder in (tmp_path / "mine").iterdir():
        for extra in sorted(folder.iterdir())[1:]:
            extra.unlink()
    done = run("adapt", "mine", "--out", "birds", "--backbone", "plain.safetensors", "--no-onnx")
    assert done.code == 0, done.err
    assert "accuracy could not be estimated" in done.out
    assert sorted(path.name for path in Path("birds").iterdir()) == [
        name for name in FILES if not name.endswith(("png", "onnx"))
    ]


def test_predict_reads_files_folders_and_patterns(run, tmp_path):
    run("adapt", "mine", "--out", "birds", "--backbone", "plain.safetensors", "--method", "proto")
    files = photos(tmp_path / "new")
    (tmp_path / "new" / "notes.txt").write_text("not an image")
    everything = run("predict", "birds", "new")
    assert everything.code == 0, everything.err
    assert len(everything.out.splitlines()) == len(files)
    assert re.fullmatch(r"new/0\.png: kind \d [\d.]+%, kind \d [\d.]+%, kind \d [\d.]+%",
                        everything.out.splitlines()[0])  # fmt: skip
    one = run("predict", "birds", "new/0.png", "--top", "1")
    assert one.out == everything.out.splitlines()[0].split(",")[0] + "\n"
    some = run("predict", "birds", "new/*.png", str(tmp_path / "new" / "wide.*"), "new/0.png")
    assert len(some.out.splitlines()) == 10
    (tmp_path / "new" / "bad.png").write_bytes(b"no")
    mixed = run("predict", "birds", "new", "--json")
    assert mixed.code == 1
    assert re.fullmatch(
        r"nsl: new/bad.png: expected an image that can be decoded, got .*\n", mixed.err
    )
    assert sum("error" in json.loads(line) for line in mixed.out.splitlines()) == 1
    assert len(mixed.out.splitlines()) == len(files) + 1
    assert run("predict", "birds", "new/bad.png").code == 2


@pytest.mark.parametrize("given", [("new/0.png", "gone.png", "new/link.png"), ("new",), ("new/*",)])
def test_what_is_not_there_is_named_and_skipped(run, tmp_path, given):
    run("adapt", "mine", "--out", "birds", *PLAIN, "--method", "proto", "--no-onnx")
    files = photos(tmp_path / "new")
    (tmp_path / "new" / "link.png").symlink_to("nowhere.png")
    predicted = run("predict", "birds", *given)
    assert predicted.code == 1
    named = [one for one in given if one == "gone.png"] + ["new/link.png"]
    assert predicted.err.splitlines() == [
        f"nsl: {one}: expected an image file, got no file of this name." for one in named
    ]
    assert len(predicted.out.splitlines()) == (1 if len(given) > 1 else len(files))


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("mine", "--why: expected a file such as why.png, got the folder mine."),
        ("why.jpg", "--why: expected a name that ends in .png, got why.jpg. It is a PNG file."),
        ("none/why.png", "--why: expected a folder that exists, got none. Create it first."),
        ("why.png", "examples.safetensors: expected the training images, got no"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_noticed_first(run, why, text):
    run("adapt", "mine", "--out", "birds", *PLAIN, "--method", "proto", "--no-onnx")
    Path("birds/examples.safetensors").unlink()
    assert run("predict", "birds", "mine").code == 0
    predicted = run("predict", "birds", "mine", "--why", why, "--force")
    assert text in one_line(predicted)
    assert predicted.out == ""


def test_why_shows_the_nearest_examples(run, tmp_path, drawn):
    run("adapt", "mine", "--out", "birds", "--backbone", "plain.safetensors", "--method", "proto")
    known = sorted(Path("mine/kind 2").iterdir())[0]
    done = run("predict", "birds", known, "--why", "why.png")
    assert done.code == 0, done.err
    asked, nearest, *_ = drawn[-1].axes
    assert asked.get_title().startswith("kind 2")
    assert nearest.get_title() == "kind 2"
    assert nearest.get_xlabel() == "cosine 1.00"
    assert np.array_equal(nearest.images[0].get_array(), asked.images[0].get_array())
    before = Path("why.png").read_bytes()
    assert "expected a new file" in one_line(run("predict", "birds", known, "--why", "why.png"))
    assert Path("why.png").read_bytes() == before


THEIRS = (
    "adapt", "mine", "--out", "birds", "--image-size", 8, "--mean", "0.5,0.5,0.5",
    "--std", "0.2,0.2,0.2", "--backbone",
)  # fmt: skip


def test_a_function_in_the_folder_where_the_command_runs(run, tmp_path):
    (tmp_path / "their_network.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 9))\n"
    )
    done = run(*THEIRS, "their_network:make", "--method", "ridge")
    assert done.code == 0, done.err
    refused = one_line(run("predict", "birds", "mine"))
    assert "expected the backbone 'their_network:make' as an argument" in refused
    assert run("predict", "birds", "mine", "--backbone", "their_network:make").code == 0


def test_what_a_network_prints_goes_to_standard_error(run, tmp_path):
    """By Python and past it, when it is imported, made and used: JSON alone is left."""
    (tmp_path / "loud.py").write_text(
        "import os\n"
        "from sys import stdout\n"
        "from torch import nn\n"
        "print('imported')\n"
        "class Loud(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        print('made')\n"
        "    def forward(self, images):\n"
        "        print('used', images.mean().item())\n"
        "        print('kept', file=stdout)\n"
        "        os.write(1, b'past Python\\n')\n"
        "        return images.flatten(1)\n"
    )
    loud = [*THEIRS, "loud:Loud", "--method", "proto", "--no-onnx"]
    ask = ("predict", "birds", "mine", "--json", "--backbone", "loud:Loud")
    adapted, predicted, alone = run(*loud), run(*ask), nsl_process(*ask)
    for done in (adapted, predicted, alone):
        assert done.code == 0, done.err
        assert not any(word in done.out for word in ("made", "used", "kept", "past Python"))
        assert "used" in done.err
    assert all(word in alone.err for word in ("imported", "made", "kept", "past Python"))
    for done in (predicted, alone):
        assert len([json.loads(line) for line in done.out.splitlines()]) == sum(COUNTS)


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
        (None, ("none", *PLAIN), "none: expected a folder with a folder per class, got no folder"),
        (None, ("mine/kind 0", *PLAIN), "at least two classes, got none"),
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
        (None, ("mine", *PLAIN, "--mean", "nan,0,0"), "expected a finite mean and std above 0"),
        (None, ("mine", *PLAIN, "--classifier", "fc"), "expected no classifier with 'plain.safe"),
        (
            None,
            ("mine", *PLAIN, "--layers", "50%"),
            "layers only with method 'static', got",
        ),
        (None, ("mine", *STATIC, "--structure", "x"), "structure to be one of"),
        (None, ("mine", *STATIC, "--layers", "150%"), "expected layers to be a share"),
        (None, ("mine", *STATIC, "--layers", "head,neck"), "No layer's name ends in it"),
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
    assert missing.err.startswith("nsl: no.png: expected an image file, got no file of this name")
    assert "*.bmp: expected an image" in one_line(run("predict", "birds", "*.bmp"))


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


def test_a_pipe_among_images_is_skipped(run, tmp_path):
    os.mkfifo(tmp_path / "mine" / "kind 0" / "pipe.png")
    ended = run("adapt", "mine", "--out", "birds", "--method", "proto", *PLAIN, "--no-onnx")
    assert ended.code == 0, ended.err
    assert "a named pipe, not a regular file" in (tmp_path / "birds" / "report.html").read_text()
    ended = run("predict", "birds", tmp_path / "mine" / "kind 0" / "pipe.png")
    assert ended.code == 2

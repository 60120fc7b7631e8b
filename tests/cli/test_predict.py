"""``nsl predict`` as a user sees it, and the ONNX file without this library."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.adapt_cases import COUNTS, METHODS, PLAIN, THEIRS, pictures
from support.command import nsl_process, one_line

pytest.importorskip("onnxruntime")
GUIDE = (Path(__file__).parents[2] / "docs" / "adapt.md").read_text()


@pytest.fixture
def run(run_beside_images):
    return run_beside_images


@pytest.fixture
def adapted(run, birds):
    """The command, beside a folder ``birds`` of what it has learned from the images."""
    shutil.copytree(birds, "birds")
    return run


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


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=() if name == "ensemble" else pytest.mark.slow)
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


def test_predict_reads_a_folder_as_training_does(adapted, tmp_path):
    """Without hidden folders, with linked ones, and without going round in circles."""
    photos(tmp_path / "far")
    for name in ("near", "near/.thumbs"):
        (tmp_path / name).mkdir()
        shutil.copy(tmp_path / "far" / "0.png", tmp_path / name / "a.png")
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "near" / "back").symlink_to(tmp_path)
    lines = adapted("predict", "birds", "near").out.splitlines()
    names = {line.split(":")[0] for line in lines}
    assert "near/a.png" in names
    assert len([name for name in names if name.startswith("near/link/")]) == len(names) - 1 > 1


def test_predict_reads_files_folders_and_patterns(adapted, tmp_path):
    files = photos(tmp_path / "new")
    (tmp_path / "new" / "notes.txt").write_text("not an image")
    everything = adapted("predict", "birds", "new")
    assert everything.code == 0, everything.err
    assert len(everything.out.splitlines()) == len(files)
    assert re.fullmatch(r"new/0\.png: kind \d [\d.]+%, kind \d [\d.]+%, kind \d [\d.]+%",
                        everything.out.splitlines()[0])  # fmt: skip
    one = adapted("predict", "birds", "new/0.png", "--top", "1")
    assert one.out == everything.out.splitlines()[0].split(",")[0] + "\n"
    some = adapted("predict", "birds", "new/*.png", str(tmp_path / "new" / "wide.*"), "new/0.png")
    assert len(some.out.splitlines()) == 10
    (tmp_path / "new" / "bad.png").write_bytes(b"no")
    mixed = adapted("predict", "birds", "new", "--json")
    assert mixed.code == 1
    assert re.fullmatch(
        r"nsl: new/bad.png: expected an image that can be decoded, got .*\n", mixed.err
    )
    assert sum("error" in json.loads(line) for line in mixed.out.splitlines()) == 1
    assert len(mixed.out.splitlines()) == len(files) + 1
    assert adapted("predict", "birds", "new/bad.png").code == 2


@pytest.mark.parametrize("given", [("new/0.png", "gone.png", "new/link.png"), ("new",), ("new/*",)])
def test_what_is_not_there_is_named_and_skipped(adapted, tmp_path, given):
    files = photos(tmp_path / "new")
    (tmp_path / "new" / "link.png").symlink_to("nowhere.png")
    predicted = adapted("predict", "birds", *given)
    assert predicted.code == 1
    named = [one for one in given if one == "gone.png"] + ["new/link.png"]
    assert predicted.err.splitlines() == [
        f"nsl: {one}: expected an image file, got no file with this name." for one in named
    ]
    assert len(predicted.out.splitlines()) == (1 if len(given) > 1 else len(files))


@pytest.mark.parametrize(
    ("why", "text"),
    [
        ("mine", "--why: expected a file such as why.png, got the folder mine."),
        ("why.jpg", "--why: expected a name that ends in .png, got why.jpg. The picture is sav"),
        ("none/why.png", "--why: expected a folder that exists, got none. Create it first."),
        ("why.png", "examples.safetensors: expected the training images, got no"),
    ],
)
def test_a_picture_that_cannot_be_drawn_is_noticed_first(adapted, why, text):
    Path("birds/examples.safetensors").unlink()
    assert adapted("predict", "birds", "mine").code == 0
    predicted = adapted("predict", "birds", "mine", "--why", why, "--force")
    assert text in one_line(predicted)
    assert predicted.out == ""


def test_why_shows_the_nearest_examples(adapted, tmp_path, drawn):
    known = sorted(Path("mine/kind 2").iterdir())[0]
    done = adapted("predict", "birds", known, "--why", "why.png")
    assert done.code == 0, done.err
    asked, nearest, *_ = drawn[-1].axes
    assert asked.get_title().startswith("kind 2")
    assert nearest.get_title() == "kind 2"
    assert nearest.get_xlabel() == "cosine 1.00"
    assert np.array_equal(nearest.images[0].get_array(), asked.images[0].get_array())
    before = Path("why.png").read_bytes()
    assert "expected a new file" in one_line(adapted("predict", "birds", known, "--why", "why.png"))
    assert Path("why.png").read_bytes() == before


@pytest.mark.parametrize("command", ["eval", "export", "inspect", "merge"])
def test_commands_for_runs_say_what_an_adapted_folder_is(adapted, command):
    said = "birds: expected a run of nsl train, got a classifier from nsl adapt. Use it with `nsl "
    assert said in one_line(adapted(command, "birds"))
    Path("birds/model.onnx").touch()
    assert "`nsl predict birds IMAGE...`; birds/model.onnx is its export." in one_line(
        adapted(command, "birds")
    )


def test_why_calls_an_image_none_of_these_as_the_text_does(adapted, drawn):
    Image.new("RGB", (40, 40), (255, 255, 0)).save("yellow.png")
    done = adapted("predict", "birds", "yellow.png", "--why", "why.png")
    assert "yellow.png: none of these (nearest: kind " in done.out
    asked, *others = drawn[-1].axes
    assert asked.get_title() == "none of these"
    assert {other.get_title()[:5] for other in others} == {"kind "}
    heading = drawn[-1].get_suptitle()
    assert "blue: of the most probable class, orange: of another class" in heading


def test_a_classifier_that_was_not_tested_does_not_know_what_is_known(adapted, birds):
    tested = adapted("predict", "birds", "mine", "--json")
    assert {json.loads(line)["known"] for line in tested.out.splitlines()} <= {True, False}
    one_fold = ("--method", "proto", "--folds", "1", "--no-onnx", *PLAIN)
    assert adapted("adapt", "mine", "--out", "untested", *one_fold).code == 0
    untested = adapted("predict", "untested", "mine", "--json")
    assert {json.loads(line)["known"] for line in untested.out.splitlines()} == {None}


def test_a_function_in_the_folder_where_the_command_runs(run, tmp_path):
    (tmp_path / "their_network.py").write_text(
        "from torch import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 9))\n"
    )
    done = run(*THEIRS, "their_network:make", "--method", "ridge", "--no-onnx")
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


def test_a_pipe_among_images_is_skipped(run, tmp_path):
    os.mkfifo(tmp_path / "mine" / "kind 0" / "pipe.png")
    ended = run("adapt", "mine", "--out", "birds", "--method", "proto", *PLAIN, "--no-onnx")
    assert ended.code == 0, ended.err
    assert "a named pipe, not a regular file" in (tmp_path / "birds" / "report.html").read_text()
    ended = run("predict", "birds", tmp_path / "mine" / "kind 0" / "pipe.png")
    assert ended.code == 2

"""Wrong command lines: one clear line, exit code 2, nothing written."""

import random

from support.adapt_cases import pictures
from support.command import nsl

COMMANDS = (
    ("train",), ("train", "--config", "file.txt"), ("train", "--similarity", "static"),
    ("fewshot",), ("fewshot", "train"), ("fewshot", "eval", "folder"), ("eval", "folder"),
    ("adapt", "images", "--out", "new", "--no-onnx", "--method", "proto"),
    ("predict", "folder", "images"), ("merge", "folder"), ("export", "folder"),
    ("inspect", "folder"), ("data", "get", "cifar10"), ("data", "check"),
)  # fmt: skip
OPTIONS = (
    "--out", "--data", "--data-dir", "--model", "--similarity", "--structure", "--epochs",
    "--steps", "--batch-size", "--lr", "--seed", "--set", "--method", "--backbone", "--folds",
    "--image-size",
    "--mean", "--std", "--crop", "--classifier", "--shots", "--episodes", "--format", "--config",
    "--resume", "--top", "--why", "--optimizer", "--nonsense",
)  # fmt: skip
VALUES = (
    "", " ", "-1", "0", "1e999", "nan", "inf", "99999999999999999999999", "None", "true", "[]",
    "{}", "a=b", "=", "model=", "steps=x", "options.width=-3", "seed=[[[[", "../../x", "/dev/null",
    "/dev/full", "folder", "file.txt", "images", "\x1b[2J", "\u202e", "caf\udce9", "'; rm -rf x",
    "a:b", "os:system", "no_such:function", "timm:", ":", "%s%n", "a" * 5000, "0.5,0.5", "1,2,3,4",
)  # fmt: skip
CASES = 1500


def command_lines():
    draw = random.Random(0)
    for _ in range(CASES):
        words = list(draw.choice(COMMANDS))
        for _ in range(draw.randint(1, 3)):
            option = draw.choice(OPTIONS)
            words += [option] if draw.random() < 0.1 else [option, draw.choice(VALUES)]
        yield words


def test_command_lines(chosen, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEURAL_SIMILARITY_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("neural_similarity.data.fetching.download.urlopen", _no_network)
    monkeypatch.setattr("neural_similarity.train.loop._Job.run_steps", _no_training)
    images, labels = pictures((2, 2))
    _write(tmp_path, images, labels)
    for words in chosen(command_lines(), sample=25):
        ended = nsl(capsys, monkeypatch, *words)
        assert ended.code in (0, 1, 2, 130), words
        assert "Traceback" not in ended.err + ended.out, words
        if ended.code == 2:
            said = [
                one for one in ended.err.splitlines() if not one.startswith("neural_similarity:")
            ]
            assert len(said) == 1 or (said and said[0].startswith("Usage:")), (words, said)
        assert (tmp_path / "file.txt").read_text() == "a file", words


def _no_network(*_arguments, **_options):
    raise OSError("no network here")


def _no_training(*_arguments, **_options):
    raise KeyboardInterrupt


def _write(folder, images, labels):
    from PIL import Image

    (folder / "folder").mkdir()
    (folder / "file.txt").write_text("a file")
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = folder / "images" / label
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number}.png")

"""The report of finished runs names the images that they were evaluated on."""

import pytest
from support.command import nsl

from neural_similarity.cli.shared import train_report
from neural_similarity.train import Run

SMALL = (
    "--data", "digits", "--model", "cnn9", "--set", "options.width=4", "--set", "options.hidden=8",
    "--steps", 2, "--batch-size", 8, "--seed", 20240101,
)  # fmt: skip


@pytest.mark.parametrize("share", [0, 0.2])
def test_held_out_training_images_are_not_called_test(share, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    held_out = ("--set", f"validation={share}") if share else ()
    kind = ("--similarity", "none", "--out", "one")
    done = nsl(capsys, monkeypatch, "train", *SMALL, *held_out, *kind)
    assert done.code == 0, done.err
    assert "<dt>seed</dt><dd>20240101</dd>" in (tmp_path / "one" / "report.html").read_text()
    measured = []
    for name in ("draw_run", "draw_comparison"):
        draw = getattr(train_report, name)

        def remember(*args, draw=draw):
            measured.append(args[-1])
            draw(*args)

        monkeypatch.setattr(train_report, name, remember)
    opened = Run.open(tmp_path / "one")
    train_report.report_run(opened)
    train_report.report_comparison({"one": opened}, tmp_path)
    assert measured == ["validation" if share else "test"] * 3

"""The confusion matrix and the reliability diagram: what is written in them."""

import numpy as np

from neural_similarity.plot import draw_calibration, draw_confusion


def names(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def confusion(classes, path, drawn):
    draw_confusion(np.eye(len(classes), dtype=np.int64), classes, path, "title")
    return drawn[-1].axes[0]


def test_long_names_that_become_alike_are_numbered(tmp_path, drawn):
    classes = [f"class number {n} of a long list" for n in ("one", "two")]
    first, second = names(confusion(classes, tmp_path / "c.png", drawn))
    assert first.startswith("1: class")
    assert second.startswith("2: class")
    assert names(confusion(["cat", "dog"], tmp_path / "c.png", drawn)) == ["cat", "dog"]


def test_a_name_is_on_one_line(tmp_path, drawn):
    assert names(confusion(["cat\n(small)", "dog"], tmp_path / "c.png", drawn))[0] == "cat (small)"


def test_of_many_classes_some_are_named(tmp_path, drawn):
    axes = confusion([f"bird {n}" for n in range(150)], tmp_path / "c.png", drawn)
    assert names(axes)[:2] == ["1: bird 0", "4: bird 3"]
    assert list(axes.get_yticks())[:2] == [0, 3]
    assert len(names(axes)) == 50


def test_calibration_says_how_many_images_a_point_has(tmp_path, drawn):
    curve = [(0.4, 0.5, 6), (0.9, 0.8, 7)]
    draw_calibration({"scores": curve}, tmp_path / "calibration.png")
    assert "(6 to 7 images per point)" in drawn[0].axes[0].get_xlabel()

"""Our style is ours alone: the user's does not come in, and ours does not stay behind."""

import threading
from pathlib import Path

import matplotlib
import matplotlib.style
from matplotlib.image import imread

from neural_similarity.plot import style


def test_the_users_style_does_not_apply(tmp_path):
    def draw(path):
        with style.figure(2.0, 1.0, "title") as drawing:
            drawing.subplots().plot([0, 1])
            style.save(drawing, path)
        return imread(path)

    plain = draw(tmp_path / "plain.png")
    with matplotlib.style.context("dark_background"):
        dark = draw(tmp_path / "dark.png")
        assert matplotlib.rcParams["text.color"] == "white", "it is the user's again"
    assert (plain == dark).all()


def test_threads_leave_the_settings_as_they_were(tmp_path: Path):
    before = dict(matplotlib.rcParams)
    first_is_in, second_is_done = threading.Event(), threading.Event()

    def first():
        with style.figure(1.0, 1.0):
            first_is_in.set()
            second_is_done.wait(0.3)  # it gets no further while the first draws

    def second():
        first_is_in.wait(10)
        with style.figure(1.0, 1.0):
            second_is_done.set()
            threads[0].join(0.3)

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(matplotlib.rcParams) == before

"""The engine: it learns what there is, the newest state wins, and nothing is computed twice."""

import errno
from contextlib import contextmanager
from io import BytesIO
from threading import Event
from threading import enumerate as threads

import pytest
import torch
from PIL import Image
from support.page_cases import COLOURS, picture, toy_backbone, write_pictures

from neural_similarity.adapt import FewShotClassifier
from neural_similarity.page import open_project
from neural_similarity.page.engine import Engine, worker
from neural_similarity.page.engine import features as features_module
from neural_similarity.page.engine.features import Features
from neural_similarity.page.engine.learning_curve import CurvePoint, forecast, learning_curve
from neural_similarity.page.project import pictures
from neural_similarity.page.refused import RefusedError
from neural_similarity.page.takeaway import Packing


@contextmanager
def running(project, backbone=None, pause=0.0):
    """An engine and a function that waits until it has learned all there is."""
    news, stages = Event(), []

    def on_news():
        stages.append(engine.status.stage)
        news.set()

    engine = Engine(project, backbone or toy_backbone(), on_news, pause)
    project.on_change = engine.wake

    def wait():
        while not (engine.is_up_to_date and engine.status.stage in ("idle", "failed")):
            assert news.wait(60), "the engine is silent"
            news.clear()
        return engine.lesson

    engine.stages = stages
    engine.start()
    try:
        yield engine, wait
    finally:
        engine.stop()


@pytest.fixture
def project(tmp_path):
    write_pictures(tmp_path, {"red": 6, "green": 6, "blue": 6})
    with open_project(tmp_path) as opened:
        yield opened


def test_it_learns_as_adapt_does(project):
    with running(project) as (engine, wait):
        lesson = wait()
    assert lesson.examples.labels == ("blue", "green", "red")
    validation = lesson.classifier.cross_validation_
    assert validation.accuracy > 0.9
    assert validation.confusion.sum() == 18
    assert lesson.is_complete
    assert engine.stages[0] == "features"
    assert engine.stages[-3:] == ["learning", "comparing", "idle"]
    (point,) = project.records.history
    assert (point.pictures, point.accuracy) == (18, validation.accuracy)
    paths = [project.folder / one.file for one in lesson.examples.pictures]
    labels = [one.label for one in lesson.examples.pictures]
    same = FewShotClassifier(lesson.classifier.method_, toy_backbone()).fit(paths, labels)
    torch.testing.assert_close(
        same.cross_validation_.confusion, lesson.classifier.cross_validation_.confusion
    )


def test_without_two_classes_there_is_no_lesson(project):
    with running(project) as (_, wait):
        assert wait() is not None
        for label in ("red", "green"):
            project.delete_class({v: k for k, v in project.listing.label_ids.items()}[label])
        project.add_class("empty")
        assert wait() is None


def test_a_change_is_learned_and_only_new_pictures_are_computed(project, monkeypatch):
    computed = []
    embed = worker.Features._embedded
    monkeypatch.setattr(
        worker.Features, "_embedded",
        lambda self, some: computed.extend(p.file for p in some) or embed(self, some),
    )  # fmt: skip
    red = {v: k for k, v in project.listing.label_ids.items()}["red"]
    with running(project) as (_, wait):
        wait()
        assert len(computed) == 18
        project.add_picture(red, "new.png", picture(COLOURS["red"], 77))
        assert len(wait().examples.pictures) == 19
        assert computed[18:] == ["red/new.png"]


def test_a_second_start_decodes_nothing(project, monkeypatch):
    with running(project) as (_, wait):
        wait()
    backbone = toy_backbone()
    monkeypatch.setattr(type(backbone.preprocessing), "read", lambda *_: pytest.fail("decoded"))
    with running(project, backbone) as (engine, wait):
        assert wait() is not None
        assert engine.features.trouble == {}


def test_the_newest_state_wins(project, monkeypatch):
    """A change during a lesson ends that lesson; the next one is about the newest pictures."""
    learn, begun = worker.learn, []
    red = {v: k for k, v in project.listing.label_ids.items()}["red"]

    def disturbed(examples, quick, tick):
        begun.append(len(examples.pictures))
        if len(begun) == 1:
            project.add_picture(red, "late.png", picture(COLOURS["red"], 99))
        return learn(examples, quick, tick)

    monkeypatch.setattr(worker, "learn", disturbed)
    with running(project) as (_, wait):
        assert len(wait().examples.pictures) == 19
    assert begun == [18, 19, 19]


def test_what_changes_no_picture_is_not_learned_again(project, monkeypatch):
    with running(project) as (engine, wait):
        lesson = wait()
        project.keep_label(project.listing.pictures[0].id)
        project.add_class("empty")
        assert wait() is lesson
        assert engine.is_up_to_date


def test_a_wrong_label_is_found(tmp_path):
    write_pictures(tmp_path, {"red": 9, "blue": 9})
    (tmp_path / "red" / "wrong.png").write_bytes(picture(COLOURS["blue"], 50))
    with open_project(tmp_path) as project, running(project) as (_, wait):
        lesson = wait()
        (suspect,) = lesson.classifier.cross_validation_.suspects
        assert lesson.examples.pictures[suspect.row].file == "red/wrong.png"


def test_damaged_files_of_an_existing_folder_are_named(project):
    (project.folder / "red" / "bad.jpg").write_bytes(b"\xff\xd8 nothing")
    project.refresh()
    with running(project) as (engine, wait):
        assert len(wait().examples.pictures) == 18
        (bad,) = (p for p in project.listing.pictures if p.version in engine.features.trouble)
        assert bad.file == "red/bad.jpg"


def test_the_limit_of_pixels_holds_for_pictures_that_are_there(project, monkeypatch):
    monkeypatch.setattr(pictures, "MOST_PIXELS", 3_000_000)
    Image.new("1", (2000, 2000)).save(project.folder / "red" / "large.png")
    project.refresh()
    with running(project) as (engine, wait):
        assert len(wait().examples.pictures) == 18
        (words,) = engine.features.trouble.values()
        assert words == "It has 2,000 × 2,000 pixels, more than 3 million."


def test_a_failure_is_told_and_the_next_change_tries_again(project, monkeypatch, caplog):
    red = {v: k for k, v in project.listing.label_ids.items()}["red"]
    with running(project) as (engine, wait):
        wait()
        with monkeypatch.context() as patch:
            patch.setattr(worker, "learn", lambda *_, **__: 1 / 0)
            project.add_picture(red, "a.png", picture(COLOURS["red"], 60))
            wait()
            assert engine.status.stage == "failed"
        project.add_picture(red, "b.png", picture(COLOURS["red"], 61))
        assert len(wait().examples.pictures) == 20


def test_answers_name_the_class_and_its_neighbours(project):
    with running(project) as (_, wait):
        lesson = wait()
    image = Image.open(BytesIO(picture(COLOURS["green"], 123)))
    answer = lesson.answer(image)
    assert answer.probabilities[1] == max(answer.probabilities)
    assert sum(answer.probabilities) == pytest.approx(1)
    assert answer.is_known
    assert {near.picture.label for near in answer.nearest} == {"green"}
    assert not lesson.answer(Image.new("RGB", (40, 40), (255, 255, 0))).is_known


class _Threshold:
    """A method whose accuracy is known: right if it has learned from at least three of a class."""

    def __init__(self, labels):
        self.labels = labels

    def fit(self, rows):
        return torch.bincount(self.labels[rows], minlength=2)

    def scores(self, learned, rows):
        right = torch.nn.functional.one_hot(self.labels[rows], 2).float()
        return right if learned.min() >= 3 else 1 - right


def test_the_curve_tests_with_fewer_pictures():
    labels = torch.arange(2).repeat(12)
    parts = torch.arange(24) // 2 % 4
    points = learning_curve(_Threshold(labels), labels, parts)
    assert points == [(1, 0.0), (2, 0.0), (3, 1.0), (5, 1.0), (8, 1.0)]


def test_no_forecast_below_what_is_reached_or_above_all():
    falling = [CurvePoint(1, 0.9), CurvePoint(2, 0.8)]
    assert forecast(falling, 4) == pytest.approx(0.8333, abs=1e-3)
    assert forecast([CurvePoint(1, 0.1), CurvePoint(2, 0.9)], 1000) == 1
    assert forecast(falling[:1], 4) is None


def test_a_page_that_opens_goes_before_learning(tmp_path, monkeypatch):
    """Requests put learning off, and only in the first seconds."""
    now = [100.0]
    monkeypatch.setattr(worker, "monotonic", lambda: now[0])
    with open_project(tmp_path) as project:
        engine = Engine(project, toy_backbone(), pause=0.3)
        assert engine._next_lesson() == pytest.approx(100.3)
        now[0] = 101.0
        engine.defer()
        assert engine._next_lesson() == pytest.approx(101.5)
        now[0] = 110.0
        engine.defer()
        assert engine._next_lesson() == pytest.approx(103.0)


def test_a_picture_that_was_gone_for_a_moment_is_learned(project):
    """It is deleted between the listing and the reading, and then the deletion is undone."""
    features = Features(toy_backbone(), project.folder)
    batch = features.missing(project.listing)
    (entry,) = project.delete_pictures([batch[1].id])
    features.compute(batch)
    assert features.missing(project.listing) == []
    project.restore(entry)
    (again,) = features.missing(project.listing)
    assert again.version == batch[1].version
    features.compute([again])
    assert features.missing(project.listing) == []
    assert features.trouble == {}


def test_moves_are_listed_while_another_request_moves_pictures(project):
    class Meanwhile:
        @property
        def by_id(self):
            project.moves.add([])
            return project.listing.by_id

    pink = project.add_class("pink")
    for name in ("red", "green"):
        project.move_pictures([project.listing.of(name)[0].id], pink)
    assert len(project.moves.possible(Meanwhile())) == 2


def test_packing_stops_after_its_step(project, monkeypatch):
    """A process that ends while a thread computes would be aborted."""
    begun = Event()

    def learn(packing, dataset):
        while True:
            begun.set()
            packing._report({"state": "working", "step": "images", "done": 0, "total": 0})

    monkeypatch.setattr(Packing, "_classifier", learn)
    with running(project) as (engine, wait):
        wait()
        packing = Packing(engine)
        packing.stop()  # nothing is running yet
        packing = Packing(engine)
        packing.start()
        begun.wait()
        packing.stop()
        assert packing.describe(())["state"] == "failed"
        with pytest.raises(RefusedError):
            packing.start()
    assert not [t for t in threads() if t.name == "nsl-teach-pack"]


def test_a_picture_that_could_not_be_reached_is_tried_again_after_a_change(project, monkeypatch):
    """A network disk may come back; a damaged picture stays damaged."""

    def unreachable(path):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    (project.folder / "red" / "bad.jpg").write_bytes(b"\xff\xd8 nothing")
    project.refresh()
    features = Features(toy_backbone(), project.folder)
    batch = features.missing(project.listing)
    with monkeypatch.context() as patch:
        patch.setattr(features_module, "image_fingerprint", unreachable)
        features.compute(batch)
    assert len(features.trouble) == len(batch) == 19
    assert features.missing(project.listing) == []
    for left in (19, 0):
        project.add_class(f"class {left}")
        again = features.missing(project.listing)
        assert len(again) == left
        features.compute(again)
    (bad,) = (one for one in batch if one.version in features.trouble)
    assert bad.name == "bad.jpg"

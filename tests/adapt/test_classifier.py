"""FewShotClassifier: what it learns, how it judges itself, and what it says to bad input."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils.validation import check_is_fitted
from support.adapt_cases import (
    EYE,
    METHODS,
    PREDICTOR,
    SEEN,
    backbone,
    network,
    pictures,
    plain_factory,
)
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import FeatureExtractor, Preprocessing, save_backbone
from neural_similarity.adapt import methods as adapters
from neural_similarity.adapt.backbones import load as backbones
from neural_similarity.adapt.backbones.load import PLAIN_TWIN, SHIPPED_DYNAMIC
from neural_similarity.adapt.methods import make_adapter
from neural_similarity.adapt.training_images import embed_images
from neural_similarity.adapt.validation.cross_validation import CrossValidation
from neural_similarity.errors import (
    DataError,
    FileFormatError,
    RunError,
    ShapeError,
    UnknownNameError,
)
from neural_similarity.nn.inventory import named_similarities

GUIDE = (Path(__file__).parents[2] / "docs" / "adapt.md").read_text()
NEW, NEW_LABELS = pictures((9, 9, 9), seed=1)


@pytest.mark.parametrize("method", METHODS)
def test_it_learns_and_ends_in_a_plain_network(method):
    images, labels = pictures((4, 2, 3))
    made = ns.FewShotClassifier(method, backbone(METHODS[method]), folds=2).fit(images, labels)
    assert made.score(NEW, NEW_LABELS) > 0.8  # chance is a third
    assert made.method_ == method
    assert made.classes_.tolist() == ["kind 0", "kind 1", "kind 2"]
    likely = made.predict_proba(NEW)
    assert likely.shape == (27, 3)
    np.testing.assert_allclose(likely.sum(1), 1, rtol=1e-5)  # float32
    assert (made.classes_[likely.argmax(1)] == made.predict(NEW)).all()
    left = list(named_similarities(made.model_))
    assert bool(left) == (method == "dynamic")
    ready = SEEN.normalise(torch.stack([SEEN.read(image) for image in NEW]))
    with torch.no_grad():
        np.testing.assert_allclose(made.model_(ready).softmax(1), likely, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_in_training_is_used_in_evaluation_and_stays_in_training(method):
    images, labels = pictures((4, 2, 3))
    given, ready = backbone(METHODS[method]), backbone(METHODS[method])
    given.module.train()
    state = {name: value.clone() for name, value in given.module.state_dict().items()}
    ours = ns.FewShotClassifier(method, given, folds=2).fit(images, labels)
    theirs = ns.FewShotClassifier(method, ready, folds=2).fit(images, labels)
    np.testing.assert_array_equal(ours.predict_proba(NEW), theirs.predict_proba(NEW))
    assert all(part.training for part in given.module.modules())
    assert all(torch.equal(value, state[name]) for name, value in given.module.state_dict().items())


def test_auto_chooses_by_cross_validation():
    images, labels = pictures((5, 4, 6))
    made = ns.FewShotClassifier(backbone=backbone(), folds=3, seed=2).fit(images, labels)
    found = made.cross_validation_
    assert set(found.by_method) == set(METHODS) - {"dynamic"}
    assert found.by_method[made.method_] == max(found.by_method.values())
    assert found.tested == found.confusion.sum() == 15
    assert found.confusion.sum(1).tolist() == [5, 4, 6]
    assert found.by_method[made.method_] == pytest.approx(found.confusion.trace() / 15)
    assert found.interval[0] < found.accuracy <= found.interval[1]
    again = clone(made).fit(images, labels)
    assert np.array_equal(again.predict_proba(NEW), made.predict_proba(NEW))
    assert again.cross_validation_.to_dict() == found.to_dict()


def test_features_that_were_computed_before_give_the_same():
    images, labels = pictures((5, 4, 6))
    base = backbone()
    whole = ns.FewShotClassifier(backbone=base, folds=3).fit(images, labels)
    classes = whole.classes_.tolist()
    numbers = torch.tensor([classes.index(label) for label in labels])
    data = embed_images(base, images, numbers, len(classes))
    made = ns.FewShotClassifier(folds=3).fit_embedded(data, classes)
    assert made.cross_validation_.to_dict() == whole.cross_validation_.to_dict()
    assert np.array_equal(made.predict_proba(NEW), whole.predict_proba(NEW))
    few = ns.FewShotClassifier(folds=3).fit_embedded(data, classes, ("proto", "dynamic"))
    assert few.method_ == "proto"
    assert set(few.cross_validation_.left_out) == {"dynamic"}
    with pytest.raises(RunError, match="needs a backbone with a dynamic"):
        ns.FewShotClassifier("dynamic").fit_embedded(data, classes)


def test_auto_leaves_out_what_would_take_minutes(monkeypatch):
    images, labels = pictures((2, 2))
    base = backbone()
    # by hand: 4² · 36 · 8 in the second stage, which alone is tuned
    assert adapters._tuned_work(base) == 16 * 288
    monkeypatch.setattr(adapters, "_MOST_WORK", 4607)
    found = ns.FewShotClassifier(backbone=base).fit(images, labels).cross_validation_
    assert set(found.by_method) == set(METHODS) - {"static", "dynamic"}
    assert set(found.left_out) == {"static", "dynamic"}
    assert "choose it with --method static, or method='static'" in found.left_out["static"]
    assert "needs a backbone with a dynamic" in found.left_out["dynamic"]
    assert CrossValidation.from_dict(found.to_dict()).left_out == found.left_out
    assert ns.FewShotClassifier("static", base, folds=1).fit(images, labels).method_ == "static"


def test_one_image_a_class_gives_no_accuracy():
    images, labels = pictures((1, 1, 1), noise=5)
    made = ns.FewShotClassifier(backbone=EYE).fit(images, labels)
    found = made.cross_validation_
    assert (found.accuracy, found.interval, found.tested) == (None, None, 0)
    assert "accuracy could not be estimated" in found.note
    assert made.method_ == "linear"
    assert made.score(NEW, NEW_LABELS) > 0.8


def test_a_class_with_one_image_is_learned_but_not_tested():
    images, labels = pictures((4, 1, 4))
    found = ns.FewShotClassifier("ridge", EYE).fit(images, labels).cross_validation_
    assert found.confusion.sum(1).tolist() == [4, 0, 4]
    assert "1 class(es) have a single image" in found.note


def test_images_of_every_kind_are_the_same(tmp_path):
    images, labels = pictures((2, 2))
    made = ns.FewShotClassifier("proto", EYE).fit(images, labels)
    expected = made.predict_proba(images)
    tensor = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    for number, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    kinds = {
        "arrays": np.stack(images),
        "PIL": [Image.fromarray(image) for image in images],
        "paths": [tmp_path / f"{n}.png" for n in range(4)],
        "names": np.array([str(tmp_path / f"{n}.png") for n in range(4)]),
        "tensor": tensor,
        "floats": tensor / 255,
    }
    for kind, given in kinds.items():
        assert np.array_equal(made.predict_proba(given), expected), kind
    grey = Preprocessing(8, (0.5,), (0.5,))
    flat = [image[:, :, 0] for image in pictures((1, 1))[0]]
    made = ns.FewShotClassifier("proto", FeatureExtractor(nn.AvgPool2d(4), grey)).fit(
        flat, ["a", "b"]
    )
    assert made.predict(flat).tolist() == ["a", "b"]


def test_labels_of_every_kind(tmp_path):
    images, _ = pictures((2, 2))
    for labels, classes in (
        (np.array([3, 3, 1, 1]), [1, 3]),
        (torch.tensor([7, 7, 8, 8]), [7, 8]),
        ([("a", 1)] * 2 + [("b", 2)] * 2, [("a", 1), ("b", 2)]),
        (["x", "x", 4, 4], ["x", 4]),
    ):
        made = ns.FewShotClassifier("proto", EYE).fit(images, labels)
        assert made.classes_.tolist() == classes
        assert made.score(images, labels) == 1
    made.save(tmp_path / "mixed")
    made = ns.FewShotClassifier("proto", EYE).fit(images, [(1,), (1,), (2,), (2,)])
    with pytest.raises(DataError, match="expected labels that JSON can hold"):
        made.save(tmp_path / "tuples")
    assert not (tmp_path / "tuples").exists()


PAIR, PAIR_LABELS = pictures((1, 1))


@pytest.mark.parametrize(
    ("images", "labels", "error", "text"),
    [
        ([], [], DataError, "expected at least one image, got none"),
        (PAIR, ["a"], DataError, r"one for each of 2 image\(s\), got 1"),
        (PAIR, ["a", "a"], DataError, r"at least two classes, got 1 \('a'\)"),
        (PAIR, [[1], [2]], DataError, "expected hashable labels"),
        (PAIR[0], ["a"] * 12, DataError, "Put a single image into a list"),
        ("a.png", ["a"], DataError, "expected a list of images, got str"),
        (Image.fromarray(PAIR[0]), ["a"], DataError, "expected a list of images, got Image"),
        (torch.zeros(3, 8, 8), ["a"] * 3, DataError, r"got shape \(3, 8, 8\)"),
        (torch.zeros(2, 2, 8, 8), ["a", "b"], ShapeError, "1 or 3 channels"),
        (torch.full((2, 3, 8, 8), 1.5), ["a", "b"], DataError, "pixels from 0 to 1, got 1.5"),
        ([np.zeros((8, 8, 4), np.uint8)] * 2, ["a", "b"], ShapeError, r"got \(8, 8, 4\)"),
        ([np.zeros((8, 8))] * 2, ["a", "b"], DataError, "arrays of uint8, got float64"),
        ([3, 4], ["a", "b"], DataError, "got int"),
        (["no.png", "none.png"], ["a", "b"], DataError, "no.png: expected an image file"),
    ],
)
def test_bad_input(images, labels, error, text):
    with pytest.raises(error, match=text):
        ns.FewShotClassifier("proto", EYE).fit(images, labels)


def test_settings_that_do_not_fit(tmp_path, monkeypatch, no_weights):
    with pytest.raises(UnknownNameError, match="method to be one of"):
        ns.FewShotClassifier("prototype", EYE).fit(PAIR, PAIR_LABELS)
    with pytest.raises(ShapeError, match="folds to be a whole number"):
        ns.FewShotClassifier("proto", EYE, folds=0).fit(PAIR, PAIR_LABELS)
    with pytest.raises(RunError, match="'dynamic' needs a backbone with a dynamic similarity"):
        ns.FewShotClassifier("dynamic", EYE).fit(PAIR, PAIR_LABELS)
    with pytest.raises(RunError, match="'static' needs a backbone without a dynamic similarity"):
        ns.FewShotClassifier("static", backbone(PREDICTOR)).fit(PAIR, PAIR_LABELS)
    with pytest.raises(RunError, match="needs layers that can have a similarity"):
        ns.FewShotClassifier("static", EYE).fit(PAIR, PAIR_LABELS)
    for method, similarity in (("static", "static"), ("dynamic", PREDICTOR)):
        off = FeatureExtractor(ns.set_similarity(network(similarity), None), SEEN, "off")
        with pytest.raises(RunError, match=f"'{method}' needs an active similarity, .* switched"):
            ns.FewShotClassifier(method, off).fit(PAIR, PAIR_LABELS)
    monkeypatch.setattr(backbones, "SHIPPED", tmp_path)
    with pytest.raises(DataError, match=r"got an installation without it. Name a backbone"):
        ns.FewShotClassifier().fit(PAIR, PAIR_LABELS)
    for call in ("predict", "predict_proba"):
        with pytest.raises(RunError, match=r"got one that is not fitted. Call fit"):
            getattr(ns.FewShotClassifier(), call)(PAIR)
    with pytest.raises(RunError, match="Call fit"):
        ns.FewShotClassifier().save(tmp_path / "new")


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_features_that_are_no_numbers_are_refused(method):
    images, labels = pictures((2, 2))
    broken = backbone(METHODS.get(method))
    with torch.no_grad():
        next(broken.module.parameters()).fill_(torch.nan)
    with pytest.raises(RunError, match=r"finite features, got NaN or infinity for 4 of 4 image.*"):
        ns.FewShotClassifier(method, broken).fit(images, labels)


def test_features_of_new_images_that_are_no_numbers_are_refused():
    images, labels = pictures((2, 2))
    made = ns.FewShotClassifier("proto", backbone()).fit(images, labels)
    with torch.no_grad():
        next(made.model_.parameters()).fill_(torch.inf)
    with pytest.raises(RunError, match=r"for 4 of 4 image.*Check its weights, and mean and std"):
        made.predict(images)


@pytest.mark.parametrize("seed", [None, "a", 1.5, True, 2**64])
def test_seeds_that_are_none(seed):
    message = f"expected seed to be a whole number of at most 64 bits, got {seed!r}"
    with pytest.raises(RunError, match=message):
        ns.FewShotClassifier("proto", EYE, seed=seed).fit(PAIR, PAIR_LABELS)


def test_numbers_of_numpy_fit_and_are_saved(tmp_path):
    images, labels = pictures((3, 3))
    settings = {"folds": np.int64(2), "seed": np.int64(3)}
    fitted = ns.FewShotClassifier("proto", backbone(), **settings).fit(images, labels)
    usual = ns.FewShotClassifier("proto", backbone(), 2, 3).fit(images, labels)
    assert fitted.cross_validation_.accuracy == usual.cross_validation_.accuracy
    fitted.save(tmp_path / "saved")
    assert ns.FewShotClassifier.load(tmp_path / "saved").get_params()["folds"] == 2


def test_the_shipped_pair_serves_every_method(tmp_path, monkeypatch, no_weights):
    monkeypatch.setattr(backbones, "SHIPPED", tmp_path)
    for name, similarity in ((SHIPPED_DYNAMIC, PREDICTOR), (PLAIN_TWIN, None)):
        made = backbone(similarity)
        save_backbone(tmp_path / f"{name}.safetensors", made.module, made.source, SEEN)
    images, labels = pictures((2, 2))
    found = ns.FewShotClassifier(folds=2).fit(images, labels)
    assert set(found.cross_validation_.by_method) == set(METHODS) - {"laplace"}
    assert "needs the classifier of base classes" in found.cross_validation_.left_out["laplace"]
    assert ns.FewShotClassifier("static").fit(images, labels).backbone_.name == "cnn4-plain"
    assert ns.FewShotClassifier("proto").fit(images, labels).backbone_.name == "cnn4-dynamic"


def test_the_lines_of_the_guide_run(tmp_path, monkeypatch, no_weights):
    monkeypatch.setattr(backbones, "SHIPPED", tmp_path)
    monkeypatch.chdir(tmp_path)
    made = backbone(PREDICTOR)
    save_backbone("cnn4-dynamic.safetensors", made.module, made.source, SEEN)
    lines = re.findall(r"```python\n(import neural_similarity.*?)```", GUIDE, re.DOTALL)[0]
    images, labels = pictures((2, 2))
    known = {"images": images, "labels": labels, "new_images": NEW}
    exec(compile(lines, "docs/adapt.md", "exec"), known)
    assert known["classifier"].predict(images).tolist() == labels


def test_scikit_learn_takes_it():
    images, labels = pictures((4, 4, 4))
    made = ns.FewShotClassifier("proto", EYE, seed=3)
    names = {"method", "backbone", "folds", "seed", "structure", "scope", "layers"}
    assert clone(made).get_params().keys() == names
    assert made.set_params(method="ridge").method == "ridge"
    with pytest.raises(UnknownNameError, match="set_params: expected a parameter"):
        made.set_params(methods="ridge")
    with pytest.raises(NotFittedError):
        check_is_fitted(made)
    scores = cross_val_score(made, np.stack(images), labels, cv=2)
    assert scores.mean() > 0.8
    check_is_fitted(made.fit(images, labels))
    assert repr(made).startswith("FewShotClassifier(method='ridge', backbone=FeatureExtractor(")


@pytest.mark.parametrize("method", METHODS)
def test_saved_and_loaded_it_is_the_same(method, tmp_path):
    images, labels = pictures((2, 3))
    made = ns.FewShotClassifier(method, backbone(METHODS[method]), folds=2, seed=4)
    made.fit(images, labels).save(tmp_path / "birds")
    read = ns.FewShotClassifier.load(tmp_path / "birds")
    assert np.array_equal(read.predict_proba(NEW), made.predict_proba(NEW))
    assert (read.method_, read.seed) == (method, 4)
    assert read.cross_validation_.to_dict() == made.cross_validation_.to_dict()
    read.save(tmp_path / "again")
    third = ns.FewShotClassifier.load(tmp_path / "again")
    assert np.array_equal(third.predict_proba(NEW), made.predict_proba(NEW))
    before = (tmp_path / "birds" / "model.safetensors").read_bytes()
    with pytest.raises(RunError, match="expected a new folder, got one that exists"):
        made.save(tmp_path / "birds")
    assert (tmp_path / "birds" / "model.safetensors").read_bytes() == before
    made.save(tmp_path / "birds", force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["again", "birds"]


def test_only_folders_of_its_own_are_replaced_or_read(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    images, labels = pictures((1, 1))
    made = ns.FewShotClassifier("proto", EYE).fit(images, labels)
    with pytest.raises(RunError, match=r"to overwrite, got something else. Nothing was changed"):
        made.save(tmp_path / "mine", force=True)
    with pytest.raises(DataError, match=r"expected a folder with model\.safetensors, got none"):
        ns.FewShotClassifier.load(tmp_path / "mine")
    made.save(tmp_path / "new" / "one")
    (tmp_path / "new" / "one" / "model.safetensors").write_bytes(b"")
    with pytest.raises(FileFormatError, match="expected a safetensors file"):
        ns.FewShotClassifier.load(tmp_path / "new" / "one")


def test_predicting_needs_the_network_alone(tmp_path, monkeypatch):
    images, labels = pictures((2, 2))
    made = ns.FewShotClassifier("proto", backbone()).fit(images, labels)
    made.save(tmp_path / "birds")
    for name in ("labels.json", "examples.safetensors"):
        (tmp_path / "birds" / name).rename(tmp_path / name)
    monkeypatch.chdir(tmp_path)
    read = ns.FewShotClassifier.load("birds")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert np.array_equal(read.predict_proba(NEW), made.predict_proba(NEW))
    text = r"examples\.safetensors: expected the training images, got no file.* predicting does not"
    with pytest.raises(DataError, match=text):
        read.save(tmp_path / "again")
    assert not (tmp_path / "again").exists()
    (tmp_path / "examples.safetensors").rename(tmp_path / "birds" / "examples.safetensors")
    assert torch.equal(read.adapted().examples.features, made.adapted().examples.features)
    (tmp_path / "birds" / "examples.safetensors").write_bytes(b"no")
    with pytest.raises(FileFormatError, match="expected examples, got a file that cannot be read"):
        read.adapted().examples  # noqa: B018 (it is read when asked for)


def test_files_are_predicted_as_images_are(tmp_path):
    """With a crop, which must be applied once; a file that is no image has a reason instead."""
    base = replace(backbone(), preprocessing=replace(SEEN, crop=0.6))
    images, labels = pictures((3, 3))
    classifier = ns.FewShotClassifier("proto", base, folds=3).fit(images, labels)
    noise = np.random.default_rng(4).integers(0, 255, (9, 9, 3)).astype(np.uint8)
    new = [images[0], noise, images[5]]
    for number, image in enumerate(new):
        Image.fromarray(image).save(tmp_path / f"{number}.png")
    (tmp_path / "bad.png").write_bytes(b"no")
    files = [tmp_path / name for name in ("0.png", "bad.png", "1.png", "2.png")]
    first, bad, *others = classifier.predict_files(files)
    assert "bad.png: expected an image that can be decoded" in str(bad)
    probabilities = torch.stack([one.probabilities for one in (first, *others)])
    assert np.array_equal(probabilities, classifier.predict_proba(new))
    known = [one.is_known for one in (first, *others)]
    assert known == classifier.is_known(new).tolist()
    assert known[0]
    assert torch.equal(first.picture, base.preprocessing.read(images[0]))
    assert all(isinstance(one, DataError) for one in classifier.predict_files(files[1:2]))


def test_code_is_run_only_when_it_is_named_again(tmp_path):
    given = {"image_size": 8, "mean": (0.5,) * 3, "std": (0.2,) * 3}
    made = ns.adapt.load_backbone("support.adapt_cases:plain_factory", **given)
    images, labels = pictures((2, 2))
    learned = ns.FewShotClassifier("proto", made).fit(images, labels)
    learned.save(tmp_path / "birds")
    with pytest.raises(RunError, match=r"plain_factory' as an arg.* as backbone \(--backbone\)"):
        ns.FewShotClassifier.load(tmp_path / "birds")
    for again in ("support.adapt_cases:plain_factory", made):
        read = ns.FewShotClassifier.load(tmp_path / "birds", again)
        assert np.array_equal(read.predict_proba(NEW), learned.predict_proba(NEW))
    assert isinstance(plain_factory(), nn.Module)


def test_probabilities_are_of_scores_over_the_temperature():
    images, labels = pictures((4, 3, 5))
    made = ns.FewShotClassifier("ridge", backbone(), folds=3).fit(images, labels)
    temperature = made.cross_validation_.temperature
    assert temperature != 1
    numbers = torch.tensor([int(label[-1]) for label in labels])
    adapter = make_adapter("ridge", embed_images(backbone(), images, numbers, 3))
    scores = adapter.scores(adapter.fit(torch.arange(12)), torch.arange(12))
    expected = (scores / temperature).softmax(1)
    np.testing.assert_allclose(made.predict_proba(images), expected, rtol=1e-4)  # float32


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_square_in_the_middle_is_read(interpolation):
    image = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    seen = Preprocessing(10, (0.5,) * 3, (0.5,) * 3, crop=0.5, interpolation=interpolation)
    by = Image.Resampling[interpolation.upper()]
    middle = Image.fromarray(image).resize((10, 10), by, box=(20, 10, 40, 30))
    assert torch.equal(seen.read(image), torch.from_numpy(np.array(middle)).permute(2, 0, 1))

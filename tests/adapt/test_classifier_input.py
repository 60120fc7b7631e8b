"""What FewShotClassifier accepts as images, labels and settings, and its errors for bad ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from support.adapt_cases import EYE, METHODS, PREDICTOR, SEEN, backbone, network, pictures
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import FeatureExtractor, Preprocessing
from neural_similarity.adapt.backbones import load as backbones
from neural_similarity.errors import DataError, RunError, ShapeError, UnknownNameError


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
        (PAIR, ["a"], DataError, r"one label for each of 2 image\(s\), got 1"),
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


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_square_in_the_middle_is_read(interpolation):
    image = np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)
    seen = Preprocessing(10, (0.5,) * 3, (0.5,) * 3, crop=0.5, interpolation=interpolation)
    by = Image.Resampling[interpolation.upper()]
    middle = Image.fromarray(image).resize((10, 10), by, box=(20, 10, 40, 30))
    assert torch.equal(seen.read(image), torch.from_numpy(np.array(middle)).permute(2, 0, 1))

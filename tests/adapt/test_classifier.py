"""FewShotClassifier: what it learns, how it evaluates itself, and what it saves."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
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
    pictures,
    plain_factory,
)
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import methods as adapters
from neural_similarity.adapt import save_backbone
from neural_similarity.adapt.backbones import load as backbones
from neural_similarity.adapt.backbones.load import PLAIN_TWIN, SHIPPED_DYNAMIC
from neural_similarity.adapt.methods import make_adapter
from neural_similarity.adapt.training_images import embed_images
from neural_similarity.adapt.validation.cross_validation import CrossValidation
from neural_similarity.errors import (
    DataError,
    FileFormatError,
    RunError,
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
    ours = ns.FewShotClassifier(method, given, folds=1).fit(images, labels)
    theirs = ns.FewShotClassifier(method, ready, folds=1).fit(images, labels)
    np.testing.assert_array_equal(ours.predict_proba(NEW), theirs.predict_proba(NEW))
    assert all(part.training for part in given.module.modules())
    assert all(torch.equal(value, state[name]) for name, value in given.module.state_dict().items())


def test_auto_chooses_by_cross_validation():
    images, labels = pictures((5, 4, 6))
    made = ns.FewShotClassifier(backbone=backbone(), folds=3, seed=2).fit(images, labels)
    found = made.cross_validation_
    assert set(found.by_method) == set(METHODS) - {"dynamic", "blocks"}
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
    again = ns.FewShotClassifier(folds=3).fit_embedded(data, classes)
    assert again.cross_validation_.temperature != 1
    assert np.array_equal(again.predict_proba(NEW), made.predict_proba(NEW))
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
    assert set(found.by_method) == set(METHODS) - {"static", "dynamic", "blocks"}
    assert set(found.left_out) == {"static", "dynamic", "blocks"}
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
    assert made.method_ == "ensemble"
    assert made.score(NEW, NEW_LABELS) > 0.8


def test_a_class_with_one_image_is_learned_but_not_tested():
    images, labels = pictures((4, 1, 4))
    found = ns.FewShotClassifier("ridge", EYE).fit(images, labels).cross_validation_
    assert found.confusion.sum(1).tolist() == [4, 0, 4]
    assert "1 class(es) have a single image" in found.note


def test_the_shipped_pair_serves_every_method(tmp_path, monkeypatch, no_weights):
    monkeypatch.setattr(backbones, "SHIPPED", tmp_path)
    for name, similarity in ((SHIPPED_DYNAMIC, PREDICTOR), (PLAIN_TWIN, None)):
        made = backbone(similarity)
        save_backbone(tmp_path / f"{name}.safetensors", made.module, made.source, SEEN)
    images, labels = pictures((2, 2))
    found = ns.FewShotClassifier(folds=2).fit(images, labels)
    assert set(found.cross_validation_.by_method) == set(METHODS) - {"laplace", "blocks"}
    assert "needs the classifier that" in found.cross_validation_.left_out["laplace"]
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


@pytest.mark.parametrize("config", [ns.StaticSimilarity(), ns.DynamicSimilarity()])
def test_similarities_attached_to_a_loaded_backbone_are_saved(config, tmp_path):
    images, labels = pictures((2, 2))
    extractor = backbone()
    ns.attach(extractor.module, config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in ns.similarity_parameters(extractor.module):
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    made = ns.FewShotClassifier("proto", extractor).fit(images, labels)
    made.save(tmp_path / "birds")
    assert ns.list_similarities(extractor.module) == ["default"]  # the user's network is as it was
    read = ns.FewShotClassifier.load(tmp_path / "birds")
    difference = abs(read.predict_proba(NEW) - made.predict_proba(NEW)).max()
    assert difference < 1e-5  # a merged kernel rounds its products once more
    plain = ns.FewShotClassifier("proto", backbone()).fit(images, labels)
    assert abs(plain.predict_proba(NEW) - made.predict_proba(NEW)).max() > 1e-4


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

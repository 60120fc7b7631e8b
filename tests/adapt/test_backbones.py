"""Backbones from all sources: files, runs, timm, functions."""

import re
import sys
import types
from pathlib import Path

import pytest
import torch
from support.adapt_cases import (
    OPTIONS,
    PREDICTOR,
    SEEN,
    backbone,
    network,
    pictures,
    plain_factory,
)
from torch import nn

import neural_similarity as ns
from neural_similarity.adapt import Preprocessing, list_backbones, load_backbone, save_backbone
from neural_similarity.adapt.backbones import load as backbones
from neural_similarity.adapt.backbones.files import network_source
from neural_similarity.adapt.backbones.load import PLAIN_TWIN, SHIPPED_DYNAMIC
from neural_similarity.errors import (
    AttachError,
    DataError,
    FileFormatError,
    RunError,
    ShapeError,
    UnknownNameError,
)
from neural_similarity.fewshot import FewShotConfig, FewShotRun, train_method
from neural_similarity.train import Run, TrainConfig, train

IMAGES = torch.rand(5, 3, 8, 8, generator=torch.Generator().manual_seed(1))
SMALL = {"options": {"width": 4, "hidden": None}, "batch_size": 314, "steps": 1, "hidden": 4}


def write(path, similarity=None, half=False):
    made = backbone(similarity)
    save_backbone(path, made.module, made.source, SEEN, card="from a test", half=half)
    return made


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("similarity", [None, PREDICTOR])
def test_a_file_gives_the_same_features(tmp_path, similarity, shared):
    if similarity is not None and shared:
        similarity = ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=4), shared=True)
    made = write(tmp_path / "b.safetensors", similarity)
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    read = load_backbone(tmp_path / "b.safetensors")
    assert torch.equal(torch.rand(1), expected), "loading used the caller's random numbers"
    with torch.no_grad():
        features = made.module(IMAGES)
        assert torch.equal(read.module(IMAGES), features)
    assert features.std() > 0.05, "the features say nothing"
    assert (read.preprocessing, read.card, read.name) == (SEEN, "from a test", "b")
    assert not read.module.training


def test_half_precision_halves_the_file_and_is_near(tmp_path):
    made = write(tmp_path / "half.safetensors", half=True)
    before = [p.dtype for p in made.module.parameters()]
    write(tmp_path / "whole.safetensors")
    with torch.no_grad():
        exact, near = (
            made.module(IMAGES),
            load_backbone(tmp_path / "half.safetensors").module(IMAGES),
        )
    assert set(before) == {torch.float32}
    assert near.dtype == torch.float32
    # 2**-11 a kernel; two layers whose BatchNorm may enlarge it
    assert 0 < (near - exact).abs().max() < 1e-2 * exact.abs().max()
    kernels = sum(p.numel() for p in made.module.parameters() if p.dim() > 1)
    sizes = [(tmp_path / f"{n}.safetensors").stat().st_size for n in ("half", "whole")]
    assert sizes[1] - sizes[0] == pytest.approx(2 * kernels, abs=64)  # the header's numbers


def test_static_similarities_are_merged_first(tmp_path):
    with pytest.raises(AttachError, match="expected a network without static similarities"):
        network_source(network("static"), "cnn9", OPTIONS, 3, 8)


def test_files_that_are_no_backbones(tmp_path):
    (tmp_path / "a.safetensors").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="a safetensors file, got a file that cannot"):
        load_backbone(tmp_path / "a.safetensors")
    ns.save_similarity(ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), ns.StaticSimilarity()),
                       tmp_path / "s.safetensors")  # fmt: skip
    with pytest.raises(FileFormatError, match="expected a file of kind 'backbone', version 1, got"):
        load_backbone(tmp_path / "s.safetensors")
    made = backbone()
    save_backbone(tmp_path / "b.safetensors", made.module, {**made.source, "model": "no"}, SEEN)
    with pytest.raises(FileFormatError, match="got one that cannot be built"):
        load_backbone(tmp_path / "b.safetensors")


def test_without_a_shipped_file_the_default_says_so(tmp_path, monkeypatch, no_weights):
    monkeypatch.setattr(backbones, "SHIPPED", tmp_path)
    assert list_backbones() == []
    with pytest.raises(DataError, match=f"expected '{SHIPPED_DYNAMIC}' to come with the package"):
        load_backbone()
    write(tmp_path / f"{SHIPPED_DYNAMIC}.safetensors", PREDICTOR)
    assert list_backbones() == [SHIPPED_DYNAMIC]
    assert load_backbone().name == load_backbone(SHIPPED_DYNAMIC).name == SHIPPED_DYNAMIC
    with pytest.raises(UnknownNameError, match="got 'cnn5'"):
        load_backbone("cnn5")


@pytest.mark.parametrize("similarity", ["none", "static", "dynamic"])
def test_a_run_of_training(tmp_path, similarity):
    train(TrainConfig(similarity=similarity, **SMALL, threads=1), tmp_path / "run")
    run = Run.open(tmp_path / "run")
    made = load_backbone(tmp_path / "run")
    images = run.example(4)
    with torch.no_grad():
        model = run.load_model()
        expected = model.forward_head(model.forward_features(images), pre_logits=True)
        # merging rounds the kernels once
        torch.testing.assert_close(made.module(images).flatten(1), expected, rtol=1e-4, atol=1e-5)
        scores = expected @ made.base_classifier[:, :-1].T + made.base_classifier[:, -1]
        torch.testing.assert_close(scores, model(images), rtol=1e-4, atol=1e-5)
    assert made.preprocessing == Preprocessing(8, *run.normalisation())
    save_backbone(tmp_path / "b.safetensors", made.module, made.source, made.preprocessing)
    with torch.no_grad():
        assert torch.equal(
            load_backbone(tmp_path / "b.safetensors").module(images), made.module(images)
        )


def test_a_run_of_a_few_shot_method(tmp_path, monkeypatch):
    tiny = {"options": {"width": 4}, "steps": 1, "n_way": 2, "n_shot": 1, "n_query": 1}
    train_method(FewShotConfig(method="proto", val_episodes=2, **tiny, threads=1), tmp_path / "run")
    made = load_backbone(tmp_path / "run")
    network = FewShotRun.open(tmp_path / "run").load_network()
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        assert torch.equal(made.module(images).flatten(1), network(images))
    assert made.image_shape == (1, 28, 28)
    assert made.base_classifier is None, "its head is no classifier of base classes"


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"expected a run, got a folder without config\.json"):
        load_backbone(tmp_path)


def test_timm_gives_weights_and_preprocessing(monkeypatch):
    """By a module of the same functions: what they return is from timm's documentation."""
    asked = []

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.fc = nn.Conv2d(3, 4, 8), nn.Linear(4, 10)

        def get_classifier(self):
            return self.fc

        def forward(self, images):
            return self.fc(self.body(images).flatten(1))

    def create_model(name, pretrained):
        asked.append((name, pretrained))
        if name != "net":
            raise RuntimeError(f"Unknown model ({name})")
        return Network()

    config = {"input_size": (3, 8, 8), "mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6),
              "crop_pct": 0.9, "interpolation": "bicubic"}  # fmt: skip
    data = types.SimpleNamespace(resolve_model_data_config=lambda model: config)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    monkeypatch.setitem(
        sys.modules, "timm", types.SimpleNamespace(create_model=create_model, data=data)
    )
    made = load_backbone("timm:net")
    assert asked == [("net", True)]
    assert made.preprocessing == Preprocessing(
        8, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), crop=0.9, interpolation="bicubic"
    )
    assert made.module(IMAGES).flatten(1).shape == (5, 4)
    assert backbones.rebuild(made.source, None)(IMAGES).flatten(1).shape == (5, 4)
    assert asked[-1] == ("net", False)
    with pytest.raises(UnknownNameError, match=r"timm:no: expected the name of a timm network"):
        load_backbone("timm:no")


def test_timm_that_does_not_import(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(RunError, match="expected the package timm, got"):
        load_backbone("timm:resnet18")


WANTED = {"image_size": 8, "mean": (0.5,) * 3, "std": (0.2,) * 3}


def test_a_function_and_its_classifier():
    made = load_backbone("support.adapt_cases:plain_factory", **WANTED)
    assert made.source == {
        "kind": "factory", "name": "support.adapt_cases:plain_factory", "classifier": "1",
    }  # fmt: skip
    with torch.no_grad():
        assert torch.equal(made.module(IMAGES), plain_factory()[0](IMAGES))
    named = load_backbone("support.adapt_cases:two_layers", classifier="0", **WANTED)
    found = load_backbone("support.adapt_cases:two_layers", **WANTED)
    assert (named.source["classifier"], found.source["classifier"]) == ("0", "3")


def test_a_network_that_ends_in_no_linear_layer_gives_features_already():
    made = load_backbone("support.adapt_cases:headless", **WANTED)
    assert made.source["classifier"] is None
    assert made.module(IMAGES).shape == (5, 8)


@pytest.mark.parametrize(
    ("spec", "given", "error", "text"),
    [
        (":plain_factory", {}, ShapeError,
         r"got no image_size, mean, std\. .* \(--image-size, --mean, --std; in Python, pass the "
         r"result of load_backbone\('support.*', image_size=.* or let the function return a Fea"),
        (":nothing", WANTED, UnknownNameError, "that can be imported, got"),
        ("no_such_module:f", WANTED, UnknownNameError,
         re.escape(f"No module named 'no_such_module'. It is neither in {Path.cwd()} nor on")),
        (":OPTIONS", WANTED, UnknownNameError, "to be a function, got"),
        (":preprocessing", WANTED, RunError, "an nn.Module or a FeatureExtractor, got Preproc"),
        (":pictures", WANTED, RunError,
         "without arguments .* got TypeError: .*missing 1 req.* Correct it, or name a function"),
        (":failing", WANTED, RunError, "got ZeroDivisionError: division by zero. Correct"),
        (":Misread", WANTED, ShapeError, r"shape \(3, 8, 8\), got an error: .*'width'"),
        (":plain_factory", {**WANTED, "image_size": 40}, ShapeError, r"\(3, 40, 40\)"),
        (":plain_factory", {**WANTED, "mean": (0.5,), "std": (0.2,)}, ShapeError,
         r"reads images of shape \(1, 8, 8\).* Set image_size \(--image-size\), and mean and std"),
        (":plain_factory", {**WANTED, "classifier": "head"}, UnknownNameError,
         "expected the classifier to be one of"),
        (":network", {**WANTED, "image_size": 16}, ShapeError, "images of shape"),
        (":plain_factory", {**WANTED, "std": (0.0,) * 3}, ShapeError, "std above 0"),
        (":plain_factory", {**WANTED, "crop": 1.5}, ShapeError, "crop above 0 and at most 1"),
        (":plain_factory", {**WANTED, "mean": (1, 2)}, ShapeError, "one .grey. or"),
    ],
)  # fmt: skip
def test_functions_that_do_not_fit(spec, given, error, text):
    spec = f"support.adapt_cases{spec}" if spec.startswith(":") else spec
    with pytest.raises(error, match=text):
        load_backbone(spec, **given)


def test_a_module_that_fails_on_import(tmp_path, monkeypatch):
    (tmp_path / "half_written.py").write_text("def network(:\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match=r"module that can be imported, got SyntaxError: .* Correct"):
        load_backbone("half_written:network", **WANTED)


def test_a_module_that_needs_another(tmp_path, monkeypatch):
    (tmp_path / "needs_more.py").write_text("import not_installed\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownNameError, match=r"'not_installed'\. Install not_installed, or add"):
        load_backbone("needs_more:network", **WANTED)


def test_a_function_that_returns_an_extractor():
    spec = "support.adapt_cases:extractor"
    made, again = load_backbone(spec), load_backbone(spec, image_size=16, crop=0.5)
    assert (made.preprocessing, made.name) == (SEEN, spec)
    assert (again.preprocessing.image_size, again.preprocessing.crop) == (16, 0.5)
    assert made.source == {"kind": "factory", "name": spec, "classifier": None}
    with torch.no_grad():
        expected = plain_factory()[0](IMAGES)
        assert torch.equal(made.module(IMAGES), expected)
        assert torch.equal(backbones.rebuild(made.source, spec)(IMAGES), expected)
    images, labels = pictures((2, 2))
    assert ns.FewShotClassifier("proto", spec).fit(images, labels).predict(images).tolist()
    own = load_backbone("support.adapt_cases:backbone")  # its network can be built without it
    assert own.source["kind"] == "create_model"
    assert backbones.rebuild(own.source, None)(IMAGES).flatten(1).shape == (5, 32)


def test_what_a_function_prints_goes_to_stderr(tmp_path, monkeypatch, capsys):
    (tmp_path / "talks.py").write_text(
        "from torch import nn\n"
        "print('on import')\n"
        "class Talks(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        print('on creation')\n"
        "    def forward(self, images):\n"
        "        print('on a pass')\n"
        "        return images.flatten(1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = load_backbone("talks:Talks", **WANTED)
    backbones.rebuild(made.source, "talks:Talks")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert {"on import", "on creation", "on a pass"} == set(printed.err.splitlines())


def test_a_module_in_place_of_a_name():
    text = r"got an object of class Sequential\. Wrap a module as FeatureExtractor\(module, Prep"
    for function in (load_backbone, lambda given: backbones.rebuild({"kind": "factory"}, given)):
        with pytest.raises(RunError, match=text) as refused:
            function(plain_factory())
        assert "Conv2d" not in str(refused.value)


@pytest.mark.slow
def test_the_files_of_the_package_are_made_from_runs(tmp_path, monkeypatch, capsys, no_weights):
    from experiments import backbone as experiment

    for method in ("dynamic", "finetune"):
        config = FewShotConfig(
            method=method, options={"width": 4}, hidden=4, steps=1, val_episodes=2, seed=1
        )
        train_method(config, tmp_path / method)
    out = tmp_path / "out"
    arguments = [str(tmp_path / "dynamic"), str(tmp_path / "finetune"), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["backbone", *arguments, "--episodes", "10"])
    experiment.main()
    card = (out / "README.md").read_text()
    assert capsys.readouterr().out.strip() == card.strip()
    assert "classes of `glyphs`" in card
    plain = "nsl fewshot train --set options.width=4 --set hidden=4 --steps 1 --seed 1"
    assert f"$ {plain} --method finetune --set val_episodes=2" in card
    assert card.count("| as trained |") == card.count("| as stored |") == 2
    monkeypatch.setattr(backbones, "SHIPPED", out)
    assert list_backbones() == sorted((SHIPPED_DYNAMIC, PLAIN_TWIN))
    assert "similarity dynamic" in load_backbone().card
    monkeypatch.setattr(sys, "argv", ["backbone", *arguments[1::-1], *arguments[2:]])
    with pytest.raises(RunError, match="a run with a dynamic similarity, then one with none"):
        experiment.main()


@pytest.mark.parametrize("switched_off", [False, True])
def test_a_backbone_file_has_no_names_of_similarities(switched_off):
    model = ns.create_model("cnn9", 3, None, 3, 8, **OPTIONS)
    ns.attach(model, PREDICTOR, name="default" if switched_off else "birds")
    if switched_off:
        ns.set_similarity(model, None)
    with pytest.raises(ns.AttachError, match=r"one active similarity named 'default', got"):
        network_source(model, "cnn9", OPTIONS, 3, 8)

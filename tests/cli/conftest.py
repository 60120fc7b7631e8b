"""Inputs for ``nsl adapt`` and ``nsl predict``."""

import shutil

import pytest
from PIL import Image
from support.adapt_cases import COUNTS, METHODS, backbone, pictures
from support.command import nsl

from neural_similarity.adapt import FewShotClassifier, save_backbone
from neural_similarity.ops.similarity_conv import compiled


@pytest.fixture(scope="session")
def images_and_backbones(tmp_path_factory):
    """A folder of images and backbones of both kinds, to be copied."""
    folder = tmp_path_factory.mktemp("given")
    images, labels = pictures(COUNTS, size=(12, 9))
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        (folder / "mine" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "mine" / label / f"{number}.png")
    for name, similarity in (("plain", None), ("dynamic", METHODS["dynamic"])):
        made = backbone(similarity)
        file = folder / f"{name}.safetensors"
        save_backbone(file, made.module, made.source, made.preprocessing, card="Its card.")
    return folder


@pytest.fixture(scope="session")
def birds(images_and_backbones, tmp_path_factory):
    """What ``nsl adapt`` makes of these images by the method proto, to be copied."""
    images = sorted((images_and_backbones / "mine").rglob("*.png"))
    classifier = FewShotClassifier("proto", images_and_backbones / "plain.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))  # not the user's
        classifier.fit(images, [image.parent.name for image in images])
    folder = tmp_path_factory.mktemp("adapted") / "birds"
    classifier.save(folder)
    return folder


@pytest.fixture
def run_beside_images(images_and_backbones, capsys, monkeypatch, tmp_path):
    """The command, beside a folder of images and backbones of both kinds."""
    shutil.copytree(images_and_backbones, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    compiled.load()  # from the usual cache, before there is an empty one
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda *arguments: nsl(capsys, monkeypatch, *arguments)

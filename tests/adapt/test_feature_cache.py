"""Features on disk: computed once, never wrong, and recomputed when damaged."""

import errno

import numpy as np
import torch
from PIL import Image
from support.adapt_cases import SEEN, backbone, pictures
from torch import nn
from torch.nn import functional as F

from neural_similarity import _tensor_files
from neural_similarity.adapt import FeatureExtractor
from neural_similarity.adapt.feature_cache import (
    backbone_fingerprint,
    image_fingerprint,
    open_cache,
)
from neural_similarity.adapt.training_images import embed_images


def _count_calls(extractor):
    calls = []
    extractor.module.register_forward_hook(lambda _m, inputs, _o: calls.append(len(inputs[0])))
    return calls


def test_features_are_those_of_the_images_and_their_mirror_images():
    images, _ = pictures((3, 2))
    extractor = backbone()
    data = embed_images(extractor, images, torch.tensor([0, 0, 0, 1, 1]), 2)
    pixels = data.pixels(torch.arange(5))
    normalise = extractor.preprocessing.normalise
    with torch.no_grad():
        expected = extractor.module(normalise(pixels))
        mirrored = extractor.module(normalise(pixels.flip(3)))
    torch.testing.assert_close(data.features, expected)
    torch.testing.assert_close(data.mirrored, mirrored)
    assert not torch.allclose(data.features, data.mirrored)


def test_code_that_changes_only_the_direction_of_features_is_noticed():
    """Features of unit length, pooled by the mean or by the maximum."""

    class Pooled(nn.Module):
        def __init__(self, pool):
            super().__init__()
            self.body, self.pool = nn.Conv2d(3, 8, 3), pool

        def forward(self, images):
            return F.normalize(self.pool(self.body(images)).flatten(1))

    mean, greatest = (Pooled(pool) for pool in (nn.AdaptiveAvgPool2d(1), nn.AdaptiveMaxPool2d(1)))
    greatest.load_state_dict(mean.state_dict())
    digests = [backbone_fingerprint(FeatureExtractor(of, SEEN)) for of in (mean, greatest, mean)]
    assert digests[0] == digests[2] != digests[1]


def test_an_image_passes_through_a_backbone_once():
    images, _ = pictures((3, 2))
    labels = torch.tensor([0, 0, 0, 1, 1])
    first = embed_images(backbone(), images, labels, 2, cache=open_cache(backbone()))
    again, calls = backbone(), []
    cache = open_cache(again)
    calls = _count_calls(again)
    more, more_labels = [*images, images[0][::-1].copy()], torch.tensor([0, 0, 0, 1, 1, 1])
    second = embed_images(again, more, more_labels, 2, cache=cache)
    assert calls == [2], "only the new image and its mirror image"
    assert torch.equal(second.features[:5], first.features)
    assert torch.equal(second.mirrored[:5], first.mirrored)


def test_a_damaged_file_is_computed_again(own_feature_cache):
    images, _ = pictures((2, 2))
    labels = torch.tensor([0, 0, 1, 1])
    first = embed_images(backbone(), images, labels, 2, cache=open_cache(backbone()))
    (file,) = own_feature_cache.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-7])
    cache = open_cache(backbone())
    assert len(cache) == 0
    assert not file.exists()
    second = embed_images(backbone(), images, labels, 2, cache=cache)
    torch.testing.assert_close(second.features, first.features)


def test_a_file_that_cannot_be_opened_now_is_kept(own_feature_cache, monkeypatch):
    images, _ = pictures((2, 2))
    embed_images(backbone(), images, torch.tensor([0, 0, 1, 1]), 2, cache=open_cache(backbone()))
    (file,) = own_feature_cache.rglob("*.safetensors")

    def refuse(path):
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(_tensor_files, "open_regular", refuse)
        assert len(open_cache(backbone())) == 0
    assert file.exists()
    assert len(open_cache(backbone())) == 4


def test_another_network_has_another_fingerprint():
    first = backbone_fingerprint(backbone())
    assert backbone_fingerprint(backbone()) == first
    changed = backbone()
    with torch.no_grad():
        next(changed.module.parameters())[0, 0, 0, 0] += 1e-3
    assert backbone_fingerprint(changed) != first
    other_code = backbone()
    other_code.module.register_forward_hook(lambda _m, _i, output: 2 * output)
    assert backbone_fingerprint(other_code) != first


def test_an_image_is_known_by_its_file_or_its_pixels(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (5, 7, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes((tmp_path / "a.png").read_bytes())
    assert image_fingerprint(tmp_path / "a.png") == image_fingerprint(str(tmp_path / "b.png"))
    assert image_fingerprint(pixels) == image_fingerprint(Image.fromarray(pixels))
    assert image_fingerprint(pixels) != image_fingerprint(pixels.reshape(7, 5, 3))

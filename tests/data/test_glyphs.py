"""Glyphs: drawn from a seed, cached, readable, and no two classes alike."""

import sys
import unicodedata

import pytest
import torch

import neural_similarity as ns
from neural_similarity.data import dataset_info, load_dataset
from neural_similarity.data.sets import _glyph_classes, glyphs
from neural_similarity.data.sets._glyph_classes import Glyphs, choose_glyphs, font_files


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path))


@pytest.fixture
def few(monkeypatch):
    """Latin letters of eight faces: a moment's work instead of ten seconds."""
    chosen = [
        path for path in font_files() if path.stem.startswith(("DejaVuSansMono", "DejaVuSerif-"))
    ]
    chosen += [path for path in font_files() if path.stem == "DejaVuSerif"]
    assert len(chosen) == 8
    monkeypatch.setattr(_glyph_classes, "_LAST", 0x017F)
    monkeypatch.setattr(glyphs, "font_files", lambda: chosen)
    return chosen


def test_look_alikes_are_one_class(few, monkeypatch):
    monkeypatch.setattr(_glyph_classes, "_LAST", 0x04FF)
    characters = choose_glyphs(few).characters
    assert {*"AB"} <= {*characters}
    assert not {*"ΑΒАВ"} & {*characters}  # Greek and Cyrillic capitals
    assert len({*"cCсСϲϹ"} & {*characters}) == 1
    assert {*"ΨЖ"} <= {*characters}
    assert not {*"ÀÉñ"} & {*characters}  # letters with accents
    assert list(characters) == sorted(characters)


def test_classes_differ_in_every_face(few):
    chosen = choose_glyphs(few)
    classes = torch.repeat_interleave(
        torch.arange(len(chosen.faces)), torch.tensor(list(map(len, chosen.faces)))
    )
    sketches = torch.from_numpy(_glyph_classes._sketches(chosen.drawings.numpy()))
    others = (sketches @ sketches.T).masked_fill(classes[:, None] == classes, -1)
    # What is compared with the bound is a product of the same vectors, summed in another order.
    assert others.max() <= _glyph_classes._ALIKE + 1e-5
    assert all(len(faces) >= 4 for faces in chosen.faces)


def test_fonts_are_asked_what_they_have(few, monkeypatch):
    """A box for a missing character would be found again and again."""
    monkeypatch.setattr(_glyph_classes, "_LAST", 0xFFFF)
    codes = _glyph_classes._codes(few[0])
    assert ord("Ж") in codes
    assert ord("あ") not in codes
    assert _glyph_classes._codes(next(p for p in font_files() if p.stem == "cmr10")) == {
        *map(ord, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
    }


def test_images_are_neither_empty_nor_cut_off(few):
    dataset = glyphs.draw_glyphs(choose_glyphs(few), instances=8, seed=3)
    pixels = dataset.images[:, 0].float()
    middle, everywhere = pixels[:, 4:24, 4:24].amax((1, 2)), pixels.flatten(1).median(1).values
    assert (middle - everywhere).min() > 60  # ink stands out of the paper
    rim = torch.cat([pixels[:, [0, -1]].flatten(1), pixels[:, :, [0, -1]].flatten(1)], 1)
    # Ink on the rim would lie halfway between paper and pen; noise reaches there on single pixels.
    halfway = (middle + everywhere) / 2
    assert ((rim > halfway[:, None]).float().mean(1) < 0.15).all()


def test_instances_take_turns_with_faces_and_differ():
    drawings = torch.zeros(3, 56, 56, dtype=torch.uint8)
    for face in range(3):
        drawings[face, 10 + 12 * face : 16 + 12 * face, 20:36] = 255
    dataset = glyphs.draw_glyphs(Glyphs(("x", "y"), ((0, 1), (2,)), drawings), 6, seed=0)
    assert dataset.labels.tolist() == [0] * 6 + [1] * 6
    assert dataset.classes == ("latin small letter x", "latin small letter y")
    assert len({tuple(image.flatten().tolist()) for image in dataset.images}) == 12
    rows = torch.arange(28.0).reshape(1, 28, 1)
    ink = (dataset.images[:, 0] > 128).float()
    height = (ink * rows).sum((1, 2)) / ink.sum((1, 2))
    first = (height[:6] < 10).tolist()
    assert sorted(first) == [False] * 3 + [True] * 3
    assert height[6:].min() > 14


def test_the_same_seed_draws_the_same(few):
    chosen = choose_glyphs(few)
    one, same, other = (glyphs.draw_glyphs(chosen, 2, seed).fingerprint for seed in (1, 1, 2))
    assert one == same != other


def test_splits_share_no_class_and_leave_none_out(few):
    parts = {split: load_dataset("glyphs", split) for split in dataset_info("glyphs").splits}
    names = [name for part in parts.values() for name in part.classes]
    assert len(names) == len(set(names)) == len(choose_glyphs(few).characters)
    for split, share in (("train", 0.64), ("val", 0.16), ("test", 0.20)):
        assert abs(parts[split].num_classes - share * len(names)) <= 1.5
        assert parts[split].labels.bincount().tolist() == [20] * parts[split].num_classes
        assert parts[split].images.shape[1:] == (1, 28, 28)
    assert len({part.fingerprint for part in parts.values()}) == 1
    assert all(unicodedata.lookup(name.upper()) for name in names)


def test_glyphs_are_drawn_once(few, monkeypatch, tmp_path):
    first = load_dataset("glyphs", "val")
    with monkeypatch.context() as patched:
        patched.setattr(glyphs, "draw_glyphs", lambda *_: pytest.fail("drawn again"))
        again = load_dataset("glyphs", "val")
    assert torch.equal(first.images, again.images)
    (kept,) = tmp_path.glob("glyphs-*.safetensors")
    content = bytearray(kept.read_bytes())
    content[-3000] ^= 255
    kept.write_bytes(content)
    assert torch.equal(load_dataset("glyphs", "val").images, first.images)
    monkeypatch.setattr(glyphs, "_VERSION", glyphs._VERSION + 1)
    load_dataset("glyphs", "val")
    assert len(list(tmp_path.glob("glyphs-*.safetensors"))) == 2


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ns.DataError, match=r"'glyphs': expected the package matplotlib.*\[cli\]"):
        load_dataset("glyphs")


@pytest.mark.slow
def test_the_whole_set_has_hundreds_of_classes():
    assert sum(load_dataset("glyphs", s).num_classes for s in ("train", "val", "test")) > 700

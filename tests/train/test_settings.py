"""What training settings mean, and where they come from."""

import json
import math
from dataclasses import fields

import pytest

import neural_similarity as ns
from neural_similarity.train import TrainConfig, train
from neural_similarity.train.build import build_similarity, check_options
from neural_similarity.train.config import merge_settings, parse_setting, read_settings


def test_similarity_of_a_configuration():
    assert build_similarity(TrainConfig()) is None
    static = build_similarity(
        TrainConfig(similarity="static", structure="sparse", structure_options={"keep": 0.3})
    )
    assert static == ns.StaticSimilarity(ns.structures.Sparse(keep=0.3))
    dynamic = build_similarity(
        TrainConfig(similarity="dynamic", hidden=7, predictor_options={"normalize": "both"})
    )
    assert dynamic == ns.DynamicSimilarity(
        ns.structures.Diagonal(), ns.SpherePredictor(hidden=7, normalize="both")
    )
    for word, predictor in (
        ("patch", ns.PatchPredictor(hidden=7)),
        ("pixel", ns.PixelPredictor(hidden=7)),
        ("image", ns.ImagePredictor(hidden=7)),
        ("pair", ns.PairPredictor(channels=7)),
    ):
        over = {"pair": "taps", "image": "kernels"}.get(word, "both")
        config = TrainConfig(
            similarity="dynamic", hidden=7, predictor=word, over=over, similarity_groups=2
        )
        assert build_similarity(config) == ns.DynamicSimilarity(
            ns.structures.Diagonal(), predictor, over=over, similarity_groups=2
        )
    for kind, named in (("static", ns.StaticSimilarity), ("dynamic", ns.DynamicSimilarity)):
        config = TrainConfig(similarity=kind, layers="stages.*")
        assert build_similarity(config).target_modules == "stages.*"
        assert isinstance(build_similarity(config), named)
    default = build_similarity(TrainConfig(similarity="dynamic", predictor="image"))
    assert default.predictor == ns.ImagePredictor()
    with pytest.raises(ns.RunError, match=r"expected valid structure_options, got \{'keap': 1\}"):
        build_similarity(
            TrainConfig(similarity="static", structure="sparse", structure_options={"keap": 1})
        )


def test_options_that_the_data_determine(tmp_path):
    check_options(TrainConfig(options={"image_size": 8}), 1, 8)
    for name, advice in (("image_size", "the setting image_size resizes"), ("in_channels", "")):
        with pytest.raises(ns.RunError, match=f"options without {name}.*got {name}=16.*{advice}"):
            train(TrainConfig(options={name: 16}), tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimiser": "sgd"}, "Did you mean 'optimizer'"),
        ({"similarity": "statik"}, "Did you mean 'static'"),
        ({"schedule": "papr"}, "Did you mean 'paper'"),
        ({"over": "channel"}, "Did you mean 'channels'"),
        ({"over": "kernel"}, "Did you mean 'kernels'"),
        ({"predictor": "picture"}, "expected predictor to be one of 'conv', 'image', 'pair'"),
        ({"similarity_groups": 0}, "expected similarity_groups of at least 1, got 0"),
        ({"epochs": 0}, "expected epochs above 0, got 0"),
        ({"batch_size": 0}, "expected batch_size of at least 1, got 0"),
        ({"batch_size": 1.5}, "expected batch_size to be a whole number, got 1.5"),
        ({"epochs": math.nan}, "expected epochs to be a finite number, got nan"),
        ({"epochs": math.inf}, "expected epochs to be a finite number, got inf"),
        ({"threads": 5000}, "expected at most 1024 threads, got 5000"),
        ({"validation": 1.0}, "expected validation of at least 0 and below 1, got 1.0"),
        ({"compile": "yes"}, "expected compile to be true or false, got 'yes'"),
        ({"steps": True}, "expected steps to be a whole number or none, got True"),
        ({"seed": 2**31}, "expected seed below"),
    ],
)
def test_wrong_settings(settings, message):
    with pytest.raises(ns.NeuralSimilarityError, match=message):
        TrainConfig.from_dict(settings)


def test_options_are_as_in_a_file():
    config = TrainConfig(options={"depths": (1, 2)})
    assert config.options == {"depths": [1, 2]}
    assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ns.RunError, match="expected options with values that JSON can store, got"):
        TrainConfig(options={"conv_layer": ns.nn.SphereConv2d})


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("steps=none", None),
        ("steps=None", None),
        ("similarity=None", "none"),
        ("augmentation=none", "none"),
        ("predictor_options.output=none", "none"),
        ("method_options.batch_size=None", None),
        ("schedule = paper", "paper"),
    ],
)
def test_the_word_none(word, value):
    assert parse_setting(word)[1] == value


def test_settings_from_files_and_words(tmp_path):
    (tmp_path / "a.toml").write_text('model = "cnn4"\nlr = 1\n[options]\nwidth = 8\n')
    settings = read_settings(tmp_path / "a.toml")
    more = map(parse_setting, ["lr=0.5", "options.pools=2", "data=glyphs", "steps=none"])
    config = TrainConfig.from_dict(merge_settings(settings, more))
    assert (config.model, config.lr, config.data) == ("cnn4", 0.5, "glyphs")
    assert config.options == {"width": 8, "pools": 2}
    (tmp_path / "b.json").write_text(json.dumps(config.to_dict()))
    assert TrainConfig.from_dict(read_settings(tmp_path / "b.json")) == config
    (tmp_path / "c.toml").write_text("lr = ")
    with pytest.raises(ns.RunError, match="cannot be read as TOML"):
        read_settings(tmp_path / "c.toml")
    with pytest.raises(ns.RunError, match=r"expected a file, got nothing at '.*d\.toml'\."):
        read_settings(tmp_path / "d.toml")
    with pytest.raises(ns.RunError, match="expected a file, got a folder: "):
        read_settings(tmp_path)
    with pytest.raises(ns.RunError, match="expected key=value, got 'lr'"):
        parse_setting("lr")


def test_every_setting_is_explained():
    assert all(field.metadata["help"] for field in fields(TrainConfig))
    assert TrainConfig.from_dict(TrainConfig().to_dict()) == TrainConfig()

"""Similarity-only files: small, exact, atomic, and refused when they do not fit."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from support.cases import LAYERS, STRUCTURES, disturb, layers, output
from support.fast_cases import torch_warns_about_itself
from support.networks import PlainCNN, ResNet
from torch import nn

import neural_similarity as ns
from neural_similarity import structures


def saved(tmp_path, structure="unconstrained", **options):
    torch.manual_seed(1)
    model = PlainCNN().eval()
    ns.attach(model, ns.StaticSimilarity(structure, **options))
    disturb(model)
    path = tmp_path / "similarity.safetensors"
    ns.save_similarity(model, path)
    return model, path


def backbone():
    torch.manual_seed(1)
    return PlainCNN().eval()


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_round_trip(tmp_path, structure, attached):
    model, path = saved(tmp_path, STRUCTURES[structure])
    other = backbone()
    if attached:
        ns.attach(other, ns.StaticSimilarity(STRUCTURES[structure]))
    assert ns.load_similarity(other, path) is other
    input = torch.randn(2, 3, 12, 10)
    assert not torch.equal(backbone()(input), model(input))
    assert torch.equal(other(input), model(input))
    torch.testing.assert_close(ns.merge(other)(input), model(input))


@pytest.mark.parametrize("scope", ["layer", "channel"])
@pytest.mark.parametrize("block_size", [None, 1])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_kind_of_layer(tmp_path, layer, block_size, scope):
    module, shape = layers()[layer]
    config = ns.StaticSimilarity("diagonal", scope, block_size=block_size, target_modules=".*")
    stock = {k: v.clone() for k, v in module.state_dict().items()}
    ns.attach(module, config)
    disturb(module)
    ns.save_similarity(module, tmp_path / "one")
    other, _ = layers()[layer]
    other.load_state_dict(stock)
    ns.load_similarity(other, tmp_path / "one")
    input = torch.randn(shape)
    assert torch.equal(output(other.eval(), input), output(module.eval(), input))


CONFIGS = {
    "static": ns.StaticSimilarity("unconstrained"),
    "dynamic": ns.DynamicSimilarity(predictor=ns.SpherePredictor(hidden=2, batch_norm=False)),
}
TASKS = ("birds", "cars", "flowers")


@pytest.mark.parametrize("kind", CONFIGS)
def test_three_tasks_are_one_backbone_and_three_small_files(tmp_path, kind):
    model, input = backbone(), torch.randn(2, 3, 12, 10)
    plain, expected = model(input), {}
    for task in TASKS:
        ns.attach(model, CONFIGS[kind], name=task)
        disturb(model)
        expected[task] = model(input)
        ns.save_similarity(model, tmp_path / task)
    ns.save_similarity(model, tmp_path / "again", name="birds")  # which is not the active one
    assert (tmp_path / "again").read_bytes() == (tmp_path / "birds").read_bytes()
    assert all((tmp_path / task).stat().st_size < 8192 for task in TASKS)

    other = backbone()
    for task in reversed(TASKS):
        ns.load_similarity(other, tmp_path / task, name=task)
        assert ns.active_similarity(other) == task, "what was loaded is active"
    assert ns.list_similarities(other) == sorted(TASKS)
    for task in TASKS:
        assert torch.equal(ns.set_similarity(other, task)(input), expected[task])
    assert torch.equal(ns.set_similarity(other, None)(input), plain)
    alone = ns.load_similarity(backbone(), tmp_path / "cars")
    assert ns.list_similarities(alone) == ["default"], "a file has no name"
    assert torch.equal(alone(input), expected["cars"])
    ns.load_similarity(other, tmp_path / "cars", name="birds")  # into one that is there
    assert torch.equal(other(input), expected["cars"])
    assert torch.equal(ns.set_similarity(other, "flowers")(input), expected["flowers"])


def test_which_one_to_save(tmp_path):
    model = ns.attach(backbone(), ns.StaticSimilarity(), name="birds")
    with pytest.raises(ns.UnknownNameError, match=r"save_similarity: .* 'birds', got 'bird'. Did"):
        ns.save_similarity(model, tmp_path / "file", name="bird")
    ns.set_similarity(model, None)
    with pytest.raises(ns.AttachError, match=r"expected an active similarity, got none of 'birds'"):
        ns.save_similarity(model, tmp_path / "file")
    ns.save_similarity(model, tmp_path / "file", name="birds")
    assert ns.active_similarity(model) is None


def test_a_file_of_the_other_kind_is_refused(tmp_path):
    dynamic = ns.attach(backbone(), CONFIGS["dynamic"])
    ns.save_similarity(dynamic, tmp_path / "dynamic")
    model = ns.attach(backbone(), ns.StaticSimilarity(), name="birds")
    untouched(
        model,
        tmp_path / "dynamic",
        "'features.0' has a static similarity here and a dynamic one in the file",
    )
    assert ns.active_similarity(model) == "birds"


def test_the_file_is_small_and_says_what_it_is(tmp_path):
    _, path = saved(tmp_path, "diagonal")
    assert path.stat().st_size < 4096
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["neural_similarity"])
        assert set(file.keys()) == {f"features.{i}.weight.numbers.diagonal" for i in (0, 3, 6)}
    layer = description["layers"]["features.3"]
    assert description["attachments"][layer["attachment"]] == {
        "mode": "static",
        "structure": {"name": "diagonal"},
        "scope": "layer",
        "block_size": None,
    }
    assert layer["fingerprint"] == {
        "class": "Conv2d",
        "groups": 1,
        "weights": {"weight": [8, 6, 3, 3]},
    }
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "nothing temporary is left"


def test_static_conv2d_and_attached_conv2d_share_files(tmp_path):
    built = nn.Sequential(ns.nn.StaticConv2d(3, 4, 3))
    disturb(built)
    ns.save_similarity(built, tmp_path / "file")
    plain = nn.Sequential(nn.Conv2d(3, 4, 3))
    plain[0].load_state_dict(
        {"weight": built[0].parametrizations.weight.original, "bias": built[0].bias}
    )
    ns.load_similarity(plain, tmp_path / "file")
    input = torch.randn(1, 3, 8, 8)
    assert torch.equal(plain(input), built(input))


def untouched(model, path, message, error=ns.FileFormatError):
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(error, match=message):
        ns.load_similarity(model, path)
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[k], v) for k, v in state.items())


def test_a_model_that_does_not_fit_is_named_layer_by_layer(tmp_path):
    _, path = saved(tmp_path)
    untouched(ResNet(), path, r"got 3 layer\(s\) that do not: 'features.0' is not a layer")
    wider = PlainCNN()
    wider.features[3] = nn.Conv2d(6, 9, 3, padding=1)
    untouched(
        wider,
        path,
        r"got 1 layer\(s\).*'features.3' is Conv2d with weight \(9, 6, 3, 3\), groups 1 here and "
        r"Conv2d with weight \(8, 6, 3, 3\), groups 1 in the file",
    )
    otherwise = ns.attach(backbone(), ns.StaticSimilarity("diagonal"))
    untouched(
        otherwise,
        path,
        "the structure of 'features.0' is .*diagonal.* here and .*unconstrained.* in the file",
    )


def test_a_model_with_more_similarities_than_the_file(tmp_path):
    _, path = saved(tmp_path, "diagonal", target_modules=["0"])
    model = ns.attach(backbone(), ns.StaticSimilarity("diagonal"))
    untouched(model, path, "'features.3' has a similarity that the file lacks")


def test_tied_weights_are_refused_as_attach_does(tmp_path):
    model = ns.attach(
        nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)),
        ns.StaticSimilarity(target_modules=["0"]),
    )
    ns.save_similarity(model, tmp_path / "one.safetensors")
    tied = nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))
    tied[1].weight = tied[0].weight
    with pytest.raises(ns.AttachError, match=r"load_similarity: .* 0\.weight and 1\.weight, which"):
        ns.load_similarity(tied, tmp_path / "one.safetensors")
    assert type(tied[0]) is nn.Conv2d


@pytest.mark.parametrize("keep", [0, 4, 50, 700, -5])
def test_truncated_files(tmp_path, keep):
    _, path = saved(tmp_path)
    path.write_bytes(path.read_bytes()[:keep])
    untouched(backbone(), path, "expected a safetensors file, got .* Save it again")


def test_foreign_files(tmp_path):
    path = tmp_path / "file"
    untouched(backbone(), path, "expected a file, got", FileNotFoundError)
    path.write_bytes(b"PK\x03\x04 something else entirely" * 40)
    untouched(backbone(), path, "expected a safetensors file")
    save_file({"weight": torch.ones(3)}, path)
    untouched(backbone(), path, "expected a file written by save_similarity")
    save_file({"weight": torch.ones(3)}, path, metadata={"neural_similarity": "[1, 2]"})
    untouched(backbone(), path, "expected a file written by save_similarity")
    save_file({"a": torch.ones(3)}, path, metadata={"neural_similarity": '{"version": 99}'})
    untouched(backbone(), path, "version 99, but this library reads version 1")


def rewrite(path, change):
    with safe_open(path, framework="pt") as file:
        metadata = json.loads(file.metadata()["neural_similarity"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(metadata, tensors)
    save_file(tensors, path, metadata={"neural_similarity": json.dumps(metadata)})


def test_files_that_do_not_keep_what_they_describe(tmp_path):
    _, path = saved(tmp_path)
    rewrite(path, lambda _, tensors: tensors.pop("features.3.weight.numbers.matrix"))
    untouched(
        backbone(),
        path,
        r"expected 'features.3.weight.numbers.matrix' of shape \(9, 9\).* got nothing",
    )
    _, path = saved(tmp_path)
    rewrite(
        path, lambda _, tensors: tensors.update({"features.3.weight.numbers.matrix": torch.ones(3)})
    )
    untouched(backbone(), path, r"of shape \(9, 9\).* got \(3,\)")
    _, path = saved(tmp_path)

    def unknown(metadata, _):
        metadata["attachments"][0]["structure"]["name"] = "magic"

    rewrite(path, unknown)
    untouched(backbone(), path, r"description is missing or unknown \(UnknownNameError.*'magic'")


def test_saving_refuses_a_plain_model_and_keeps_the_old_file(tmp_path):
    _, path = saved(tmp_path)
    before = path.read_bytes()
    with pytest.raises(ns.AttachError, match="save_similarity: expected a model with an attached"):
        ns.save_similarity(PlainCNN(), path)
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError):
        ns.save_similarity(saved(tmp_path)[0], tmp_path / "no" / "such" / "folder")


def test_a_failing_write_keeps_the_old_file(tmp_path, monkeypatch):
    model, path = saved(tmp_path)
    before = path.read_bytes()

    def half(file, content):
        with file.open("wb") as opened:
            opened.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(OSError, match="No space left"):
        ns.save_similarity(model, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_groups_are_part_of_the_fingerprint(tmp_path):
    path = tmp_path / "file"
    ns.save_similarity(ns.attach(nn.Sequential(nn.Conv2d(4, 6, 3)), ns.StaticSimilarity()), path)
    untouched(nn.Sequential(nn.Conv2d(8, 6, 3, groups=2)), path, "groups 2 here and .* groups 1 in")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["layers"]["features.0"]["fingerprint"].pop("class"),
        lambda m: m["layers"]["features.0"]["fingerprint"].update(weights=[1]),
        lambda m: m["layers"]["features.0"].update(attachment=-1),
        lambda m: m.update(layers={}),
        lambda m: m["attachments"][0].update(scope="everything"),
        lambda m: m["attachments"][0].update(structure={"name": "sparse", "nonsense": 1}),
    ],
)
def test_descriptions_that_make_no_sense(tmp_path, change):
    _, path = saved(tmp_path)
    rewrite(path, lambda metadata, _: change(metadata))
    untouched(backbone(), path, "expected a file written by save_similarity")


def test_equal_structures_are_equal_however_they_were_named(tmp_path):
    _, path = saved(tmp_path, structures.KernelShape("psd"))
    same = structures.KernelShape(structures.PositiveSemidefinite())
    assert same == structures.KernelShape("psd")
    ns.load_similarity(ns.attach(backbone(), ns.StaticSimilarity(same)), path)


@dataclass(frozen=True)
class Unregistered(structures.Diagonal):
    name: ClassVar[str] = "unregistered"


def test_a_structure_that_files_cannot_name_is_refused(tmp_path):
    model = ns.attach(backbone(), ns.StaticSimilarity(Unregistered()))
    with pytest.raises(ns.UnknownNameError, match=r"save_similarity: .* got 'unregistered'"):
        ns.save_similarity(model, tmp_path / "file")
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True)
class UnregisteredPredictor(ns.ImagePredictor):
    kind: ClassVar[str] = "unregistered"


@pytest.mark.parametrize(
    "config",
    [
        ns.DynamicSimilarity(Unregistered(), ns.ImagePredictor(hidden=2)),
        ns.DynamicSimilarity(predictor=UnregisteredPredictor(hidden=2)),
    ],
)
def test_a_dynamic_similarity_that_files_cannot_name_is_refused(tmp_path, config):
    model = ns.attach(backbone(), config)
    with pytest.raises(ns.UnknownNameError, match=r"save_similarity: .* got 'unregistered'"):
        ns.save_similarity(model, tmp_path / "file")
    assert not list(tmp_path.iterdir())


@torch_warns_about_itself
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile], ids=["parallel", "compiled"])
def test_what_is_wrapped_around_a_model_is_left_out(wrap, tmp_path):
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), ns.StaticSimilarity())
    M = next(ns.similarity_parameters(model))
    M.data.uniform_()
    ns.save_similarity(wrap(model), tmp_path / "m.safetensors")
    plain = ns.load_similarity(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), tmp_path / "m.safetensors"
    )
    assert torch.equal(next(ns.similarity_parameters(plain)), M)
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    ns.load_similarity(wrap(other), tmp_path / "m.safetensors")
    assert torch.equal(next(ns.similarity_parameters(other)), M)


def test_others_may_read_a_file(tmp_path):
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 4, 3)), ns.StaticSimilarity())
    ns.save_similarity(model, tmp_path / "m.safetensors")
    (tmp_path / "other").touch()
    modes = {file.stat().st_mode for file in tmp_path.iterdir()}
    assert len(modes) == 1, "as any file is made"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_values_that_are_not_finite_are_refused_by_name(tmp_path, value):
    model, path = saved(tmp_path, "diagonal")
    next(ns.similarity_parameters(model)).data[4] = value
    ns.save_similarity(model, path)
    message = "NaN or infinity for 1 of 9 values of 'features.0.weight.numbers.diagonal'"
    untouched(backbone(), path, message)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.complex64])
def test_a_shared_predictor_of_several_dtypes_is_refused(tmp_path, dtype):
    config = ns.DynamicSimilarity(shared=True, predictor=ns.SpherePredictor(hidden=2))
    path = tmp_path / "shared"
    ns.save_similarity(ns.attach(backbone(), config), path)
    key = "features.3.predictor.network.core.first.weight"
    rewrite(path, lambda _, tensors: tensors.update({key: tensors[key].to(dtype)}))
    untouched(backbone(), path, "share one where the file has two|, got .*torch.(int32|complex64)")


def test_json_in_json_in_json_is_refused(tmp_path):
    _, path = saved(tmp_path)
    for text in ("[" * 100_000, '{"version":' * 99 + "1" + "}" * 99):
        save_file({"a": torch.ones(3)}, path, metadata={"neural_similarity": text})
        untouched(backbone(), path, "expected a file written by save_similarity")

"""Networks in other formats: the same scores, or no file."""

import json
import logging
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from support.cases import disturb
from support.networks import PlainCNN
from torch import nn

import neural_similarity as ns
from neural_similarity.export import FORMATS, export_model, onnx, torch_export

SHAPE = (3, 3, 12, 10)
PREDICTOR = ns.SpherePredictor(hidden=4)
CONFIGS = {
    "plain": None,
    "static": ns.StaticSimilarity("unconstrained"),
    "dynamic": ns.DynamicSimilarity("diagonal", PREDICTOR, target_modules=["features.3"]),
}
METADATA = {"classes": '["a", "b"]', "mean": "[0.5]"}


def network(name):
    model = PlainCNN()
    if CONFIGS[name] is not None:
        ns.attach(model, CONFIGS[name])
        disturb(model)
    return model.eval()


def other_batch(model):
    """An input the exporter has not seen, and the model's scores."""
    input = torch.randn(7, *SHAPE[1:])
    return input, model(input).detach()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_program_for_pytorch(name, tmp_path):
    model, path = network(name), tmp_path / "model.pt2"
    difference = export_model(model, torch.randn(SHAPE), path, "torch-export", metadata=METADATA)
    assert 0 <= difference < 1e-5  # the same kernels, but for those that were merged
    input, expected = other_batch(model)
    inside = {"metadata.json": ""}
    program = torch.export.load(path, extra_files=inside)
    scale = expected.abs().max().item()
    torch.testing.assert_close(program.module()(input), expected, rtol=0, atol=1e-4 * scale)
    assert json.loads(inside["metadata.json"]) == METADATA
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_onnx(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, path = network(name), tmp_path / "model.onnx"
    path.write_text("an old file")
    model.train()
    kinds = [type(module) for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    export_model(model, torch.randn(SHAPE)[:1], path, force=True, metadata=METADATA)
    assert model.training  # and otherwise as it was
    assert [type(module) for module in model.modules()] == kinds
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    input, expected = other_batch(model.eval())
    (scores,) = session.run(["scores"], {"image": input.numpy()})
    scale = expected.abs().max().item()
    torch.testing.assert_close(torch.from_numpy(scores), expected, rtol=0, atol=1e-4 * scale)
    assert session.get_modelmeta().custom_metadata_map == METADATA
    assert list(tmp_path.iterdir()) == [path]  # weights inside, nothing beside


def test_onnx_takes_few_operations(tmp_path):
    onnx = pytest.importorskip("onnx")
    convolutions = [(3, 16, 1), (16, 16, 1), (16, 20, 2)]  # each is written in its own way
    layers = [
        ns.nn.DynamicConv2d(channels, kernels, 3, stride, padding=1, predictor=PREDICTOR)
        for channels, kernels, stride in convolutions
    ]
    model = nn.Sequential(*layers, nn.Flatten()).eval()
    disturb(model)
    path = tmp_path / "model.onnx"
    assert export_model(model, torch.randn(SHAPE), path) < 1e-5
    operations = [node.op_type for node in onnx.load(path).graph.node]
    assert {"Col2Im", "Gather"} < set(operations)
    assert "BatchNormalization" not in operations  # of the predictors
    assert len(operations) < 30 * len(layers)


def test_the_exporter_is_quiet(tmp_path, capsys, caplog):
    pytest.importorskip("onnxruntime")
    level = logging.getLogger("torch.onnx").level
    export_model(nn.Flatten(), torch.randn(2, 3, 4), tmp_path / "model.onnx")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert logging.getLogger("torch.onnx").level == level


def test_static_similarities_are_merged_in_the_file(tmp_path):
    path = tmp_path / "model.pt2"
    export_model(network("static"), torch.randn(SHAPE), path, "torch-export")
    assert set(torch.export.load(path).state_dict) == set(PlainCNN().state_dict())


class TooSubtle(nn.Module):
    """Computes something else while it is traced."""

    def forward(self, input):
        return input.flatten(1) * (2 if torch.compiler.is_compiling() else 1)


class Cancels(nn.Module):
    """One minus nearly one: what is left is small, and its rounding errors are those of one."""

    def forward(self, input):
        rounded = 2e-7 if torch.compiler.is_compiling() else 0.0
        return 1 - (0.999 + 0 * input.flatten(1) - rounded)


def test_small_differences_of_large_numbers_are_measured_by_the_large_ones(tmp_path):
    path, example = tmp_path / "model.pt2", torch.randn(2, 4, 3)
    with pytest.raises(ns.ExportError, match=r"relative difference of .*e-04"):
        export_model(Cancels(), example, path, "torch-export")
    assert export_model(Cancels(), example, path, "torch-export", scales=(1,)) < 1e-6


class Outside(nn.Module):
    """Decides by its numbers, which no exporter follows."""

    def forward(self, input):
        return input * 2 if input.sum() > 0 else input


@pytest.mark.parametrize(
    ("model", "error"),
    [
        (TooSubtle(), r"to give the model's scores, got a relative difference of 1.0e\+00 on a "),
        (Outside(), "expected a network that torch-export can express, got"),
        (nn.LSTM(3, 4), "a tuple of tensors, got tuple inside a tuple"),
        (nn.Flatten().half(), None),
    ],
)
def test_what_is_not_equal_is_not_written(model, error, tmp_path):
    path = tmp_path / "model.pt2"
    path.write_text("an old file")
    example = torch.randn(2, 4, 3)
    if error is None:
        example, error = example.half(), "float32 or float64, got torch.float16"
    with pytest.raises(ns.ExportError, match=error):
        export_model(model, example, path, "torch-export", force=True)
    assert path.read_text() == "an old file"
    assert list(tmp_path.iterdir()) == [path]


def test_ctrl_c_that_the_exporter_wraps_is_still_ctrl_c(tmp_path, monkeypatch):
    def write(*arguments):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("failed to export") from error

    monkeypatch.setattr(torch_export, "write", write)
    with pytest.raises(KeyboardInterrupt):
        export_model(nn.Flatten(), torch.randn(2, 4, 3), tmp_path / "model.pt2", "torch-export")
    assert not list(tmp_path.iterdir())


class TwoOutputs(nn.Module):
    """Scores, and how far away the input is."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, input):
        return self.linear(input), input.square().sum(1)


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_with_a_guide(format, tmp_path):
    model, path = ns.nn.family.PixelAdaptiveConv2d(4, 6, 3), tmp_path / f"model{FORMATS[format]}"
    examples = [torch.randn(1, 4, 7, 5), torch.randn(1, 2, 7, 5)]
    assert export_model(model, examples, path, format, inputs=("image", "guide")) < 1e-5
    others = [torch.randn(5, *example.shape[1:]) for example in examples]
    (result,) = (onnx if format == "onnx" else torch_export).runner(path)(*others)
    torch.testing.assert_close(result, model(*others), rtol=1e-4, atol=1e-5)
    path.unlink()
    with pytest.raises(ns.ExportError, match=r"expected 1 example\(s\), got 2. Give a batch for"):
        export_model(model, examples, path, format)
    with pytest.raises(ns.ExportError, match=r"the same number of samples, got \[1, 5\]"):
        export_model(model, [examples[0], others[1]], path, format, inputs=("a", "b"))
    with pytest.raises(ns.ExportError, match="to be a batch of samples, got NoneType"):
        export_model(model, [examples[0], None], path, format, inputs=("a", "b"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_model_with_two_outputs(format, tmp_path):
    model, example = TwoOutputs().eval(), torch.randn(4, 3)
    path = tmp_path / f"model{FORMATS[format]}"
    names = ("scores", "distance")
    assert export_model(model, example, path, format, outputs=names) < 1e-6
    if format == "onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        assert [output.name for output in session.get_outputs()] == list(names)
        _, distance = session.run(None, {"image": example.numpy()})
        np.testing.assert_allclose(distance, example.square().sum(1), rtol=1e-5)
    path.unlink()
    with pytest.raises(ns.ExportError, match=r"returns 1 tensor\(s\), got 2. Name each"):
        export_model(model, example, path, format)
    assert list(tmp_path.iterdir()) == []


def test_numbers_that_are_not_finite(tmp_path):
    model = nn.Linear(3, 2)
    nn.init.constant_(model.weight, float("nan"))
    with pytest.raises(ns.ExportError, match="relative difference of nan"):
        export_model(model, torch.randn(2, 3), tmp_path / "model.pt2", "torch-export")
    assert list(tmp_path.iterdir()) == []


def test_bad_input(tmp_path):
    model, example = nn.Flatten(), torch.randn(2, 3, 4)
    with pytest.raises(ns.UnknownNameError, match=r"'onnx', 'torch-export', got 'onxn'.*'onnx'"):
        export_model(model, example, tmp_path / "model.onnx", "onxn")
    with pytest.raises(ns.ExportError, match=r"ends in '.pt2' for torch-export, got .*model.onnx"):
        export_model(model, example, tmp_path / "model.onnx", "torch-export")
    with pytest.raises(ns.ExportError, match=r"example to be a batch of samples, got shape \(3,\)"):
        export_model(model, torch.randn(3), tmp_path / "model.pt2", "torch-export")
    (tmp_path / "there.pt2").write_text("mine")
    with pytest.raises(ns.ExportError, match=r"expected a new file, got .*there.pt2.*force"):
        export_model(model, example, tmp_path / "there.pt2", "torch-export")
    assert (tmp_path / "there.pt2").read_text() == "mine"
    with pytest.raises(FileNotFoundError, match="no such folder"):
        export_model(model, example, tmp_path / "missing" / "model.pt2", "torch-export")


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}])
def test_metadata_that_are_no_strings(metadata, tmp_path):
    message = (
        r"metadata whose names and values are strings, got (1 for 'a'|'a' for 1)\. .*json\.dumps"
    )
    for path, format in ((tmp_path / "m.onnx", "onnx"), (tmp_path / "m.pt2", "torch-export")):
        with pytest.raises(ns.ExportError, match=message):
            export_model(nn.Flatten(), torch.randn(2, 3), path, format, metadata=metadata)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (torch.float64, r"export model\.float\(\) with example\.float"),
        (torch.float32, "try another"),
    ],
)
def test_what_the_runtime_cannot_run_is_not_written(dtype, advice, tmp_path, monkeypatch):
    def runner(path):
        raise NotImplementedError("\nno such layer\nmore")

    monkeypatch.setattr(torch_export, "runner", runner)
    message = r"expected torch-export's runtime to run .* got NotImplementedError: no such layer\. "
    with pytest.raises(ns.ExportError, match=f"{message}.*{advice}.*Nothing was written"):
        export_model(
            nn.Flatten(), torch.randn(2, 3, dtype=dtype), tmp_path / "m.pt2", "torch-export"
        )
    assert list(tmp_path.iterdir()) == []


def test_missing_packages_are_named(tmp_path, monkeypatch):
    for name in ("onnxruntime", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name != "onnx" else object())
    with pytest.raises(
        ns.ExportError, match=r"onnxscript, onnxruntime.*pip install 'neural-similarity\[onnx\]'"
    ):
        export_model(nn.Flatten(), torch.randn(2, 3, 4), tmp_path / "model.onnx")
    torch_export.check_packages()  # needs none


class Returning(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


@pytest.mark.parametrize(
    ("make", "names", "message"),
    [
        (lambda x: {"a": x}, ["a"], "returns a tensor or a tuple of tensors, got dict. Wrap it"),
        (lambda x: [x], ["a"], "a tuple of tensors, got list. Wrap it in a module that returns"),
        (lambda x: (x, (x, x)), ["a", "b"], "got tuple inside a tuple. Wrap it in a module that"),
        (lambda x: x.half(), ["a"], r"float32 or float64, got torch.float16. Convert it with"),
        (lambda x: x, "scores", r"expected outputs to be a list of names, got 'scores'. For one:"),
        (lambda x: (x, x), ["image", "b"], r"different names for all .* got \['image'\] twice"),
    ],
)
def test_outputs_that_cannot_be_exported(make, names, message, tmp_path):
    target = tmp_path / "a.pt2"
    with pytest.raises(ns.ExportError, match=message):
        export_model(
            Returning(make), torch.randn(2, 3), target, "torch-export", inputs=["image"],
            outputs=names,
        )  # fmt: skip
    assert not target.exists()


def test_an_output_without_elements(tmp_path):
    model, target = Returning(lambda x: (2 * x, x[:, :0])), tmp_path / "a.pt2"
    assert export_model(model, torch.randn(2, 3), target, "torch-export", outputs=["a", "b"]) == 0

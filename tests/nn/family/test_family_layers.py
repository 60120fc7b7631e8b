"""The published layers in the rest of PyTorch: export, checkpoints, compilers; bad input."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.cases import disturb
from support.family_cases import CASES, build
from torch import nn

import neural_similarity as ns
from neural_similarity.errors import ShapeError
from neural_similarity.nn import family

EXPORTED = (
    "involution, strided",
    "attention, strided",
    "pixel-adaptive, normalised",
    "modulated",
    "squeeze-excite",
    "spatial attention",
    "bilateral, guided",
    "spatial transformer",
)


class All(nn.Module):
    """All layers side by side, so that the exporter starts once; images from one flat input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(build(name, torch.float32)[0] for name in EXPORTED)

    def forward(self, flat):
        outputs = []
        for name, layer in zip(EXPORTED, self.layers, strict=True):
            inputs = [
                flat[:, : C * H * W].reshape(-1, C, H, W) + place
                for place, (_, C, H, W) in enumerate(CASES[name].inputs)
            ]
            outputs.append(layer(*inputs))
        return tuple(outputs)


def compare(model, exported):
    for batch in (1, 3):
        flat = torch.randn(batch, 400)
        results = exported(flat)
        for name, truth, result in zip(EXPORTED, model(flat), results, strict=True):
            torch.testing.assert_close(
                result, truth, rtol=1e-4, atol=1e-5,
                msg=lambda m, w=f"{name}, batch {batch}": f"{w}: {m}",
            )  # fmt: skip


BATCH = ({0: torch.export.Dim("batch")},)


@torch.no_grad()
@pytest.mark.slow  # test_onnx exports the same program first
def test_torch_export():
    model = All().eval()
    compare(
        model, torch.export.export(model, (torch.randn(2, 400),), dynamic_shapes=BATCH).module()
    )


@torch.no_grad()
def test_onnx(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    model, path = All().eval(), tmp_path / "family.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own
        program = torch.onnx.export(
            model,
            (torch.randn(2, 400),),
            dynamo=True,
            verbose=False,
            dynamic_shapes=BATCH,
            optimize=False,  # two thirds of the time, for the same results
        )
        program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()

    def run(flat):
        return [torch.from_numpy(one) for one in session.run(None, {entry.name: flat.numpy()})]

    compare(model, run)


@pytest.mark.parametrize("name", CASES)
def test_state_dicts_copies_and_pickles(name):
    layer, inputs = build(name)
    expected = layer(*inputs)
    fresh = CASES[name].layer().double().eval()
    fresh.load_state_dict(layer.state_dict())
    for twin in (fresh, copy.deepcopy(layer)):
        assert torch.equal(twin(*inputs), expected)
    if name != "spatial transformer":  # its localisation is the user's
        assert repr(pickle.loads(pickle.dumps(layer))) == repr(layer)


@pytest.mark.parametrize(
    "cls",
    [
        family.PixelAdaptiveConv2d,
        family.ModulatedConv2d,
        family.SqueezeExciteConv2d,
        family.SpatialAttentionConv2d,
    ],
)
def test_checkpoints_of_a_plain_convolution_load(cls):
    plain, layer = nn.Conv2d(4, 6, 3, groups=2), cls(4, 6, 3, groups=2, bias=True)
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    layer.load_state_dict(plain.state_dict())
    for key, value in layer.state_dict().items():
        assert torch.equal(value, plain.state_dict().get(key, before[key])), key


@pytest.mark.parametrize("name", CASES)
def test_autocast_and_channels_last(name):
    layer, inputs = build(name, torch.float32)
    expected = layer(*inputs)
    last = tuple(input.to(memory_format=torch.channels_last) for input in inputs)
    torch.testing.assert_close(layer(*last), expected, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        rough = layer(*inputs)
    rough.float().sum().backward() if rough.requires_grad else None
    assert (rough.float() - expected).abs().max() < 0.1 * (1 + expected.abs().max())


@pytest.mark.parametrize("name", ["attention", "pixel-adaptive, normalised"])
def test_compile_with_gradients(name):
    layer, inputs = build(name)
    expected = layer(*inputs)
    gradients = torch.autograd.grad(expected.square().sum(), list(layer.parameters()))
    result = torch.compile(layer, fullgraph=True, backend="aot_eager")(*inputs)
    torch.testing.assert_close(result, expected)
    again = torch.autograd.grad(result.square().sum(), list(layer.parameters()))
    torch.testing.assert_close(again, gradients)


def test_a_compiled_transformer_takes_other_batches():
    """The last batch of an epoch is smaller."""
    layer, (image,) = build("spatial transformer")
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for batch in (2, 5, 3):
        images = torch.randn(batch, *image.shape[1:], dtype=image.dtype)
        expected, result = layer(images), compiled(images)
        torch.testing.assert_close(result, expected)
        pairs = [
            torch.autograd.grad(y.square().sum(), layer.parameters()) for y in (result, expected)
        ]
        torch.testing.assert_close(*pairs)


def test_the_transformers_grid_is_pytorchs():
    theta = torch.randn(2, 6, dtype=torch.float64)
    layer, image = family.SpatialTransformer2d(lambda _: theta), torch.randn(2, 3, 5, 4).double()
    grid = F.affine_grid(theta.view(2, 2, 3), [2, 3, 5, 4], align_corners=False)
    expected = F.grid_sample(image, grid, align_corners=False)
    torch.testing.assert_close(layer(image), expected, rtol=1e-12, atol=1e-12)


def test_the_transformers_places_are_exact_under_autocast():
    """In bfloat16 the places of 300 pixels would be wrong by up to two pixels."""
    place = nn.Linear(1, 6)
    place.weight.data.zero_()
    place.bias.data = torch.tensor([1.0, 0, 0, 0, 1, 0])
    layer = family.SpatialTransformer2d(nn.Sequential(nn.AvgPool2d(300), nn.Flatten(), place))
    image = torch.arange(300.0).expand(1, 1, 300, 300)
    with torch.autocast("cpu", torch.bfloat16):
        result = layer(image)
    torch.testing.assert_close(result, image, rtol=0, atol=1e-3)
    half = layer.bfloat16()(image.bfloat16())
    torch.testing.assert_close(half, image.bfloat16())


def test_a_static_similarity_of_a_guided_layer_merges():
    class Guided(nn.Module):
        def __init__(self):
            super().__init__()
            self.plain = nn.Conv2d(4, 4, 3, padding=1)
            self.guided = family.PixelAdaptiveConv2d(4, 6, 3, padding=1)

        def forward(self, input):
            return self.guided(self.plain(input), input)

    model, image = Guided(), torch.randn(2, 4, 6, 5)
    before = model(image)
    disturb(ns.attach(model, ns.StaticSimilarity("unconstrained")))
    expected = model(image)
    assert not torch.allclose(expected, before)
    ns.merge(model)
    assert type(model.guided) is family.PixelAdaptiveConv2d
    torch.testing.assert_close(model(image), expected)


def test_the_transformers_localisation_counts_as_similarity():
    layer, _ = build("spatial transformer")
    model = nn.Sequential(layer, nn.Conv2d(3, 2, 1))
    assert {id(p) for p in ns.similarity_parameters(model)} == {id(p) for p in layer.parameters()}


BAD = {
    "even kernel": (lambda: family.Involution2d(16, 4), r"Involution2d: .*odd sides, got \(4, 4\)"),
    "group of channels": (
        lambda: family.Involution2d(24),
        "expected group_channels to divide the 24 channels, got 16",
    ),
    "reduction": (lambda: family.Involution2d(16, reduction=0), "reduction to be a whole number"),
    "stride": (lambda: family.Involution2d(16, stride=0), "stride to be a whole number of at"),
    "heads": (
        lambda: family.LocalAttention2d(4, 12),
        "expected heads to divide the 12 out_channels, got 8",
    ),
    "odd width": (
        lambda: family.LocalAttention2d(4, 6, heads=2),
        r"an even number of channels in each head, got 3 \(6 in 2 heads\)",
    ),
    "padding": (
        lambda: family.LocalAttention2d(4, 8, padding=-1, heads=2),
        "padding to be a whole number of at least 0, got -1",
    ),
    "deformable groups": (
        lambda: family.ModulatedConv2d(4, 6, 3, deform_groups=3),
        "expected deform_groups to divide the 4 in_channels, got 3",
    ),
    "even guided kernel": (lambda: family.PixelAdaptiveConv2d(3, 4, 2), "odd sides, got"),
    "squeeze": (lambda: family.SqueezeExciteConv2d(3, 4, 3, reduction=0), "reduction to be a whol"),
    "temperature": (
        lambda: family.SpatialAttentionConv2d(3, 4, 3, temperature=0),
        "expected temperature to be a number above 0, got 0",
    ),
    "sigma": (
        lambda: family.BilateralFilter2d(3, 1.0, -2.0),
        "expected sigma_colour to be a number above 0, got -2.0",
    ),
    "a word for a truth value": (
        lambda: family.PixelAdaptiveConv2d(3, 4, 3, normalize_kernel="no"),
        "expected normalize_kernel to be true or false, got 'no'",
    ),
    "mixture of kernels": (
        lambda: family.SpatialAttentionConv2d(4, 6, 3, kernel_num=4),
        "expected kernel_num 1, got 4. A mixture of kernels is not a similarity",
    ),
    "another form": (
        lambda: family.PixelAdaptiveConv2d(3, 4, 3, kernel_type="inv_2_0.5"),
        "expected kernel_type 'gaussian', got 'inv_2_0.5'. .* Leave kernel_type out",
    ),
    "true for a number": (
        lambda: family.SpatialAttentionConv2d(4, 6, 3, kernel_num=True),
        "expected kernel_num 1, got True",
    ),
    "native implementation": (
        lambda: family.PixelAdaptiveConv2d(3, 4, 3, native_impl=True),
        "expected native_impl False, got True",
    ),
    "groups in the place of the bias": (
        lambda: family.PixelAdaptiveConv2d(4, 8, 3, 1, 1, 1, 2),
        "expected bias to be true or false, got 2",
    ),
    "two numbers of heads": (
        lambda: family.LocalAttention2d(4, 12, 3, heads=2, groups=3),
        "expected heads or groups, got heads=2 and groups=3",
    ),
    "no heads": (lambda: family.LocalAttention2d(4, 12, 3, heads=0), "heads to be a whole number"),
    "bias in the place of the groups": (
        lambda: family.ModulatedConv2d(4, 6, 3, 1, 1, 1, 1, False),
        "expected deform_groups to be a whole number of at least 1, got False",
    ),
    "sigma's kind": (lambda: family.BilateralFilter2d(3, "1", 2.0), "sigma_space to be a number"),
}


def test_the_usual_arguments_in_their_usual_order():
    """Calls as people write them for the usual implementations, by position and by name."""
    attention = family.LocalAttention2d(4, 12, 3, 1, 1, 2, True)
    assert (attention.heads, attention.query.bias is None) == (2, False)
    assert family.LocalAttention2d(4, 12, kernel_size=3, padding=1, groups=3).heads == 3
    modulated = family.ModulatedConv2d(4, 6, 3, 2, 1, 1, 2, 4, False)
    assert (modulated.groups, modulated.deform_groups, modulated.bias) == (2, 4, None)
    spatial = family.SpatialAttentionConv2d(64, 6, 3, 1, 1, 1, 2, 0.5, 1)
    assert (spatial.groups, spatial.reduce.out_channels, spatial.bias) == (2, 32, None)
    guided = family.PixelAdaptiveConv2d(
        4, 6, 3, 1, 1, 1, False, "gaussian", "none", True, False, "uniform"
    )
    assert (guided.bias, guided.normalize_kernel) == (None, True)
    involution = family.Involution2d(32, 7, 2)
    assert (involution.groups, involution.reduce.out_channels) == (2, 8)


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name):
    build, message = BAD[name]
    with pytest.raises(ShapeError, match=message):
        build()


@pytest.mark.parametrize("name", CASES)
def test_bad_inputs(name):
    layer, inputs = build(name)
    with pytest.raises(ShapeError, match=rf"{type(layer).__name__}: expected input of shape \(N, "):
        layer(torch.zeros(4, 5, dtype=torch.float64), *inputs[1:])


def test_images_smaller_than_the_window():
    layer = family.LocalAttention2d(3, 4, 5, padding=0, heads=1)
    with pytest.raises(ShapeError, match=r"LocalAttention2d: expected a padded input of at least"):
        layer(torch.zeros(2, 3, 4, 6))


def test_bad_guides_and_transforms():
    image = torch.zeros(2, 3, 5, 6)
    for layer in (family.PixelAdaptiveConv2d(3, 4, 3), family.BilateralFilter2d(3, 1.0, 1.0)):
        for guide in (torch.zeros(2, 3, 5, 5), torch.zeros(3, 3, 5, 6), torch.zeros(3, 5, 6)):
            with pytest.raises(ShapeError, match=r"guide of shape \(2, D, 5, 6\), got"):
                layer(image, guide)
        with pytest.raises(ShapeError, match=r"guide of shape \(D, 5, 6\), got \(1, 3, 5, 6\)"):
            layer(image[0], torch.zeros(1, 3, 5, 6))
    seven = nn.Sequential(nn.Flatten(), nn.Linear(90, 7))
    with pytest.raises(ShapeError, match=r"localisation to return \(2, 6\) or \(2, 2, 3\), got"):
        family.SpatialTransformer2d(seven)(image)


@pytest.mark.parametrize("name", EXPORTED)
def test_the_similarity_of_a_single_image_is_refused(name):
    layer, inputs = build(name, torch.float32)[:2]
    with pytest.raises(ShapeError, match=r"\.similarity: expected a batch .* images\[None\]"):
        layer.similarity(inputs[-1][0])

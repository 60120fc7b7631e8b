"""Dynamic layers: M per position from the input, starting at the identity, in any network."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support import oracle
from support.cases import GEOMETRIES, PREDICTORS, SMALL, STRUCTURES, disturb
from support.networks import PlainCNN, ResNet, train_step
from torch import nn

import neural_similarity as ns
from neural_similarity import structures
from neural_similarity.nn.inventory import layer_similarities, named_similarities

DYNAMIC = ns.DynamicSimilarity(predictor=SMALL)


@pytest.mark.parametrize(
    ("predictor", "structure"),
    [
        (predictor, structure)
        for predictor in PREDICTORS
        for structure in ("diagonal", "unconstrained")
        if structure == "diagonal" or "pair" not in predictor  # pairs make a diagonal
    ],
)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_starts_as_the_plain_convolution_and_moves_away(name, predictor, structure):
    geometry = GEOMETRIES[name]
    plain = geometry.conv().double()
    dynamic = ns.nn.DynamicConv2d(
        geometry.channels, geometry.kernels, geometry.kernel, **geometry.options,
        structure=structure, predictor=PREDICTORS[predictor],
    ).double()  # fmt: skip
    dynamic.load_state_dict(plain.state_dict())
    input = geometry.input(dtype=torch.float64)
    torch.testing.assert_close(dynamic(input), plain(input))
    disturb(dynamic)
    assert (dynamic(input) - plain(input)).abs().max() > 1e-3


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["strided", "grouped"])
def test_every_structure_is_the_definition_with_the_predicted_matrix(name, structure):
    geometry = GEOMETRIES[name]
    conv = ns.nn.DynamicConv2d(
        geometry.channels, geometry.kernels, geometry.kernel, **geometry.options, bias=False,
        structure=STRUCTURES[structure], predictor=SMALL,
    ).double()  # fmt: skip
    disturb(conv)
    input = geometry.input(dtype=torch.float64)
    M = conv.similarity(input).detach()
    weight = conv.weight.detach()
    if isinstance(STRUCTURES[structure], structures.KernelShape):
        outer = STRUCTURES[structure]
        D = outer.shape({"shape": conv.predictor.shape_numbers}).detach()
        M = M * (D[:, None, None] if M.dim() == 4 else D[:, None, None, None])
    truth = oracle.similarity_conv2d(
        input,
        weight,
        oracle.positional_matrix(
            M, geometry.channels // geometry.groups, geometry.kernels, geometry.groups
        ),
        **geometry.options,
    )
    torch.testing.assert_close(conv(input), truth, rtol=1e-11, atol=1e-11)
    at = M[0, ..., 1, 2]
    if structure == "psd":
        assert torch.linalg.eigvalsh(at).min() > -1e-10
    if structure == "orthogonal":
        torch.testing.assert_close(at.T @ at, torch.eye(len(at)).double())
    if structure == "symmetric":
        assert torch.equal(at, at.T)


def test_the_predictor_sees_exactly_what_the_convolution_sees():
    """Changing a pixel changes M only at positions whose neighbourhood of windows holds it."""
    conv = ns.nn.DynamicConv2d(2, 3, (3, 5), stride=2, padding=(1, 2), predictor=SMALL).eval()
    disturb(conv)
    input = torch.randn(1, 2, 13, 17)
    changed = input.clone()
    changed[0, :, 6, 8] += 1
    moved = (conv.similarity(input) != conv.similarity(changed)).any(1)[0].nonzero()
    # The pixel lies in windows of rows 3 and columns 3 to 5; the second layer looks one further.
    assert moved.min(0).values.tolist() == [2, 2]
    assert moved.max(0).values.tolist() == [4, 6]


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({"padding": "same"}, "zeros"),
        ({"padding": (2, 1)}, "reflect"),
        ({"padding": "same"}, "circular"),
    ],
)
def test_every_kind_of_padding(options, mode):
    plain = nn.Conv2d(3, 4, (4, 3), dilation=(1, 2), padding_mode=mode, **options)
    dynamic = ns.nn.DynamicConv2d(
        3, 4, (4, 3), dilation=(1, 2), padding_mode=mode, predictor=SMALL, **options
    )
    dynamic.load_state_dict(plain.state_dict())
    input = torch.randn(2, 3, 9, 8)
    torch.testing.assert_close(dynamic(input), plain(input), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dynamic(input[0]), plain(input[0]), rtol=1e-4, atol=1e-5)
    disturb(dynamic)
    dynamic.eval()
    explicit = ns.nn.DynamicConv2d(3, 4, (4, 3), dilation=(1, 2), predictor=SMALL).eval()
    explicit.load_state_dict(dynamic.state_dict())
    around = {"same": (2, 2, 1, 2), (2, 1): (1, 1, 2, 2)}[options["padding"]]
    padded = F.pad(input, around, mode="constant" if mode == "zeros" else mode)
    torch.testing.assert_close(dynamic(input), explicit(padded), rtol=1e-4, atol=1e-4)


pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")


def test_disjoint_attachment_to_a_pretrained_network():
    plain = PlainCNN().eval()
    model = ns.attach(copy.deepcopy(plain), DYNAMIC)
    input = torch.randn(2, 3, 12, 10)
    torch.testing.assert_close(model(input), plain(input))
    assert [type(m).__name__ for m in model.features if isinstance(m, nn.Conv2d)] == [
        "DynamicConv2d"
    ] * 3
    disturb(model)
    assert not torch.allclose(model(input), plain(input))
    model.load_state_dict(PlainCNN().state_dict())  # a stock checkpoint leaves the predictors alone
    again = ns.attach(PlainCNN().eval(), DYNAMIC)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(input), model(input))


@pytest.mark.filterwarnings("ignore::neural_similarity.SkippedLayerWarning")
@pytest.mark.parametrize(
    "structure", ["diagonal", "unconstrained", "psd", structures.KernelShape()]
)
def test_attachment_to_a_network_with_every_kind_of_convolution(structure):
    plain = ResNet().double().eval()
    model = ns.attach(
        copy.deepcopy(plain), ns.DynamicSimilarity(structure, ns.SpherePredictor(hidden=3))
    )
    input = torch.randn(2, 3, 24, 20, dtype=torch.float64)
    torch.testing.assert_close(model(input), plain(input))
    before = [p.clone() for p in ns.similarity_parameters(model)]
    for _ in range(2):  # the first step moves the zero layer, the second those before it
        train_step(model.train(), input)
    after = list(ns.similarity_parameters(model))
    assert all(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_two_stage_training_from_a_pretrained_network():
    model = PlainCNN()
    input = torch.randn(10, 3, 12, 10)
    for _ in range(20):
        train_step(model, input)
    model.eval()
    before = F.cross_entropy(model(input), torch.arange(10) % 4).item()
    ns.attach(model, DYNAMIC)
    backbone = {n: p.clone() for n, p in model.named_parameters() if "predictor" not in n}
    ns.freeze_backbone(model, also_train=[])
    for _ in range(40):
        train_step(model, input, learning_rate=0.3)
    assert all(torch.equal(p, backbone[n]) for n, p in model.named_parameters() if n in backbone)
    first = F.cross_entropy(model(input), torch.arange(10) % 4).item()
    assert first < before
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    for _ in range(40):
        train_step(model, input)
    assert F.cross_entropy(model(input), torch.arange(10) % 4).item() < first


def test_files_hold_predictors_too(tmp_path):
    path, input = tmp_path / "dynamic.safetensors", torch.randn(2, 3, 12, 10)
    for config in (
        DYNAMIC,
        ns.DynamicSimilarity("unconstrained", SMALL, shared=True, shared_width=4),
        ns.DynamicSimilarity(structures.KernelShape("psd"), ns.ConvPredictor(hidden=3)),
    ):
        torch.manual_seed(2)
        model = ns.attach(PlainCNN(), config)
        disturb(model)
        model(input)  # BatchNorm statistics move, and must be kept
        model.eval()
        ns.save_similarity(model, path)
        torch.manual_seed(2)
        other = ns.load_similarity(PlainCNN().eval(), path)
        plain = PlainCNN().state_dict()
        for m in (model, other):
            m.load_state_dict(plain)
        assert torch.equal(other(input), model(input))
        networks = [layer_similarities(other.features[i])["predictor"].network for i in (0, 3)]
        assert config.shared == (getattr(networks[0], "core", 0) is getattr(networks[1], "core", 1))
    built = nn.Sequential(ns.nn.DynamicConv2d(3, 4, 3, predictor=SMALL))
    ns.save_similarity(built, path)
    assert isinstance(
        ns.load_similarity(nn.Sequential(nn.Conv2d(3, 4, 3)), path)[0], ns.nn.DynamicConv2d
    )


def test_odd_inputs_behave_as_in_a_plain_convolution():
    layer = ns.nn.DynamicConv2d(3, 4, 3, predictor=SMALL).eval()
    assert layer(torch.randn(0, 3, 8, 8)).shape == (0, 4, 6, 6)
    with pytest.raises((ns.ShapeError, RuntimeError), match=r"[Kk]ernel"):
        layer(torch.randn(1, 3, 2, 2))
    input = torch.randn(1, 3, 9, 9)
    input[0, 0, 0, 0] = torch.nan
    result = layer(input)
    assert result[0, :, 0, 0].isnan().all()
    assert result[0, :, 4:, 4:].isfinite().all()


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Sequential(nn.Conv3d(2, 2, 3)),
            {},
            r"0: expected a layer .*\(Conv2d, Conv1d, Linear, LSTMCell\), got Conv3d",
        ),
        (
            nn.Sequential(nn.Linear(5, 2)),
            {"target_modules": ".*", "block_size": 2},
            "divide the 5 input features",
        ),
        (nn.Sequential(nn.Conv2d(2, 2, 4)), {"structure": "dilated"}, "multiple of dilation 2"),
    ],
)
def test_what_cannot_be_dynamic_says_why_and_changes_nothing(model, options, message):
    before = [type(m) for m in model.modules()]
    with pytest.raises(ns.NeuralSimilarityError, match=message):
        ns.attach(model, ns.DynamicSimilarity(**options))
    assert [type(m) for m in model.modules()] == before


def test_configuration_errors():
    with pytest.raises(
        ns.UnknownNameError, match=r"SpherePredictor: .*'authors', 'identity', got 'zero'"
    ):
        ns.SpherePredictor(start="zero")
    with pytest.raises(ns.UnknownNameError, match=r"ConvPredictor: .* got 'tanh'"):
        ns.ConvPredictor(output="tanh")
    for hidden in (0, True, "4"):
        with pytest.raises(ns.ShapeError, match=r"hidden to be a whole number of at least 1, got"):
            ns.SpherePredictor(hidden=hidden)
    with pytest.raises(ns.ShapeError, match="expected residual=True with start='identity'"):
        ns.SpherePredictor(residual=False)
    with pytest.raises(ns.AttachError, match="shared_width of at least 1, got 0"):
        ns.DynamicSimilarity(shared_width=0)
    for wrong in ("sphere", ns.SpherePredictor, 3):
        with pytest.raises(ns.AttachError, match=r"DynamicConv2d: expected predictor to be"):
            ns.nn.DynamicConv2d(3, 3, 3, predictor=wrong)
    with pytest.raises(ns.UnknownNameError, match=r"DynamicSimilarity: .* got 'diag'"):
        ns.DynamicSimilarity("diag")
    model = ns.attach(nn.Sequential(nn.Conv2d(3, 3, 3)), DYNAMIC)
    with pytest.raises(ns.AttachError, match="got layer '0', which already has one"):
        ns.attach(model, ns.StaticSimilarity())
    with pytest.raises(ns.MergeError, match=r"got only dynamic ones. They depend on the input"):
        ns.merge(model)


def test_merging_leaves_dynamic_layers_as_they_are():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    ns.attach(model, ns.StaticSimilarity(target_modules=["0"]))
    ns.attach(model, ns.DynamicSimilarity(predictor=SMALL, target_modules=["1"]))
    disturb(model)
    model.eval()
    input = torch.randn(1, 3, 9, 9)
    before = model(input)
    torch.testing.assert_close(ns.merge(model)(input), before)
    assert type(model[0]) is nn.Conv2d
    assert isinstance(model[1], ns.nn.DynamicConv2d)


def test_a_second_attachment_stays_out_of_predictors():
    model = ns.attach(PlainCNN(), ns.DynamicSimilarity(predictor=SMALL, target_modules=["3"]))
    ns.attach(model, ns.StaticSimilarity(exclude_modules=["3"]))
    names = [name for name, _ in named_similarities(model)]
    assert names == ["features.0.weight", "features.3.predictor", "features.6.weight"]
    linear = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    ns.attach(linear, ns.DynamicSimilarity(predictor=SMALL, target_modules=["1"]))
    ns.freeze_backbone(linear)
    assert linear[1].weight.requires_grad, "the classifier, not the predictor's last layer"


def test_the_summary_counts_what_merging_leaves():
    model = PlainCNN()
    plain = sum(p.numel() for p in model.parameters())
    ns.attach(model, ns.DynamicSimilarity(predictor=SMALL, target_modules=["3"]))
    ns.attach(model, ns.StaticSimilarity(target_modules=["0"]))
    summary = ns.trainable_summary(model)
    assert summary.deployed == summary.total - 9
    assert summary.similarity == summary.total - plain
    assert str(summary).endswith(f"similarity; {summary.total - 9:,} once merged")
    dynamic = ns.attach(PlainCNN(), ns.DynamicSimilarity(predictor=SMALL, target_modules=["3"]))
    assert str(ns.trainable_summary(dynamic)).endswith("of them similarity"), "it cannot be merged"


def test_files_keep_separate_shared_predictors_apart(tmp_path):
    path = tmp_path / "file"
    config = ns.DynamicSimilarity(predictor=SMALL, shared=True, shared_width=4)

    def network():
        pair = [nn.Sequential(nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)) for _ in range(2)]
        return nn.ModuleDict(dict(zip("ab", pair, strict=True)))

    model = network()
    ns.attach(model["a"], config)
    ns.attach(model["b"], config)
    disturb(model)
    ns.save_similarity(model, path)
    loaded = ns.load_similarity(network(), path)
    for ours, theirs in zip(
        ns.similarity_parameters(model), ns.similarity_parameters(loaded), strict=True
    ):
        assert torch.equal(ours, theirs)
    together = ns.attach(network(), config)
    with pytest.raises(ns.FileFormatError, match="share one where the file has two"):
        ns.load_similarity(together, path)
    partly = network()
    ns.attach(partly["a"][0], config)
    with pytest.raises(ns.FileFormatError, match=r"got a.0 with it and a.1 without it"):
        ns.load_similarity(partly, path)


@pytest.mark.parametrize("structure", ["diagonal", "unconstrained"])
def test_second_derivatives_through_a_whole_layer(structure):
    layer = ns.nn.DynamicConv2d(2, 2, (3, 2), padding=1, structure=structure, predictor=SMALL)
    layer.double().eval()
    disturb(layer)
    parameters = dict(layer.named_parameters())

    def f(input, *values):
        return torch.func.functional_call(
            layer, dict(zip(parameters, values, strict=True)), (input,)
        )

    input = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    tensors = (input, *(p.detach().requires_grad_() for p in parameters.values()))
    assert torch.autograd.gradcheck(f, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(f, tensors, fast_mode=True)


def test_channels_last_gives_the_same_and_stays():
    layer = ns.nn.DynamicConv2d(4, 6, 3, padding=1, predictor=SMALL).eval()
    disturb(layer)
    input = torch.randn(2, 4, 7, 8)
    expected = layer(input)
    last = torch.channels_last
    result = layer.to(memory_format=last)(input.to(memory_format=last))
    assert result.is_contiguous(memory_format=last)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "predictor", [ns.SpherePredictor(4), ns.PixelPredictor(4), ns.ImagePredictor(4)]
)
def test_a_structure_without_parameters_is_refused(predictor):
    """The only orthogonal matrix of one row is the identity."""
    with pytest.raises(ns.AttachError, match="parameters to predict, got 'orthogonal', which has"):
        ns.nn.DynamicConv2d(3, 4, 1, structure="orthogonal", predictor=predictor)

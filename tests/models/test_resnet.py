"""Residual networks, compared with the same networks written out."""

import pytest
import torch
import torch.nn.functional as F

from neural_similarity import ShapeError
from neural_similarity.models.resnet import ResNet


def conv_norm(x, conv, norm, stride):
    x = F.conv2d(x, conv.weight, stride=stride, padding=conv.weight.shape[-1] // 2)
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def shortcut(x, block, width, stride, stem):
    if x.shape[1] == width and stride == 1:
        return x
    if stem == "imagenet":
        return conv_norm(x, *block.downsample, stride)
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, width - x.shape[1]))


@pytest.mark.parametrize(
    ("stem", "depth", "widths"), [("imagenet", 18, (4, 4, 6, 8)), ("cifar", 14, (4, 6, 8))]
)
def test_written_out(stem, depth, widths):
    model = ResNet(5, in_channels=2, depth=depth, widths=widths, stem=stem).double()
    model(torch.randn(8, 2, 33, 33).double())  # so that BatchNorm has something to remember
    model.eval()
    x = torch.randn(2, 2, 33, 33).double()
    y = conv_norm(x, model.conv1, model.bn1, 2 if stem == "imagenet" else 1).relu()
    y = F.max_pool2d(y, 3, 2, 1) if stem == "imagenet" else y
    for stage, width in enumerate(widths, 1):
        for number, block in enumerate(getattr(model, f"layer{stage}")):
            stride = 2 if stage > 1 and number == 0 else 1
            z = conv_norm(y, block.conv1, block.bn1, stride).relu()  # as torchvision: stride first
            z = conv_norm(z, block.conv2, block.bn2, 1)
            y = (z + shortcut(y, block, width, stride, stem)).relu()
    torch.testing.assert_close(model(x), F.linear(y.mean((2, 3)), model.fc.weight, model.fc.bias))


def test_zeros_cannot_take_the_place_of_fewer_channels():
    with pytest.raises(ShapeError, match=r"never decrease with stem 'cifar', got \(16, 8\)"):
        ResNet(5, depth=6, widths=(16, 8), stem="cifar")
    ResNet(5, depth=6, widths=(16, 8), stem="imagenet")

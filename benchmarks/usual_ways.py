"""Published layers as they are usually written: ``unfold``, a product, a sum.

Each function takes a layer of ``nn.family``, for its parameters, and the layer's inputs. Stride 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from neural_similarity.nn import family

__all__ = [
    "bilateral",
    "involution",
    "local_attention",
    "modulated",
    "pixel_adaptive",
    "spatial_attention",
]


def windows_of(input: Tensor, kernel: int) -> Tensor:
    """``(N, C, K, H, W)``: the windows of the whole batch, K times its memory."""
    N, C, H, W = input.shape
    return F.unfold(input, kernel, padding=kernel // 2).view(N, C, kernel * kernel, H, W)


def involution(layer: family.Involution2d, input: Tensor) -> Tensor:
    """As in the authors' ``involution_naive.py``."""
    kernel = layer.windows.kernel_size[0]
    predicted = layer.similarity(input).unflatten(1, (layer.groups, 1, -1))
    patches = windows_of(input, kernel).unflatten(1, (layer.groups, -1))
    output: Tensor = (predicted * patches).sum(3).flatten(1, 2)
    return output


def local_attention(layer: family.LocalAttention2d, input: Tensor) -> Tensor:
    """Keys and values of all windows; the relative places are added to the keys."""
    kernel, heads = layer.windows.kernel_size[0], layer.heads
    rows = layer.rows[:, :, :, None].expand(-1, -1, -1, kernel)
    columns = layer.columns[:, :, None].expand(-1, -1, kernel, -1)
    relative = torch.cat([rows, columns], 1).flatten(2)[..., None, None]
    query = layer.query(input).unflatten(1, (heads, -1))
    keys = windows_of(layer.key(input), kernel).unflatten(1, (heads, -1)) + relative
    values = windows_of(layer.value(input), kernel).unflatten(1, (heads, -1))
    attention = (query[:, :, :, None] * keys).sum(2).softmax(2)
    output: Tensor = (attention[:, :, None] * values).sum(3).flatten(1, 2)
    return output


def pixel_adaptive(layer: family.PixelAdaptiveConv2d, input: Tensor, guide: Tensor) -> Tensor:
    """As in the authors' native implementation: windows of guide and input, and a product."""
    kernel = layer.kernel_size[0]
    differences = windows_of(guide, kernel) - guide[:, :, None]
    adapting = differences.square().sum(1).mul(-0.5).exp()
    return _product(layer, windows_of(input, kernel) * adapting[:, None])


def modulated(layer: family.ModulatedConv2d, input: Tensor) -> Tensor:
    """Windows, mask, product: what implementations without a kernel of their own do."""
    patches = windows_of(input, layer.kernel_size[0]).unflatten(1, (layer.deform_groups, -1))
    mask = layer.similarity(input).unflatten(1, (layer.deform_groups, 1, -1))
    return _product(layer, (patches * mask).flatten(1, 2))


def spatial_attention(layer: family.SpatialAttentionConv2d, input: Tensor) -> Tensor:
    """As in the authors' code: kernels of each image, and the images as groups of one."""
    N, C, H, W = input.shape
    channel, spatial = layer.attentions(input)
    assert spatial is not None
    kernels = layer.weight * spatial.reshape(N, 1, 1, *layer.kernel_size)
    together = (input * channel).reshape(1, N * C, H, W)
    output = F.conv2d(together, kernels.flatten(0, 1), padding=layer.kernel_size[0] // 2, groups=N)
    return output.reshape(N, -1, H, W)


def bilateral(layer: family.BilateralFilter2d, input: Tensor) -> Tensor:
    """Windows of the image, their differences to the centre, and a weighted mean."""
    kernel = layer.windows.kernel_size[0]
    patches = windows_of(input, kernel)
    inside = windows_of(torch.ones_like(input[:1, :1]), kernel)
    offsets = torch.arange(kernel) - kernel // 2
    space = (offsets[:, None].square() + offsets.square()).flatten()
    near = (-space / (2 * layer.sigma_space**2)).exp()[:, None, None]
    colours = (patches - input[:, :, None]).square().sum(1, keepdim=True)
    weights = (-colours / (2 * layer.sigma_colour**2)).exp() * near * inside
    return (weights * patches).sum(2) / weights.sum(2)


def _product(layer: torch.nn.Conv2d, patches: Tensor) -> Tensor:
    """The kernels times patches ``(N, C, K, H, W)``."""
    N, H, W = patches.shape[0], *patches.shape[-2:]
    rows = patches.reshape(N, -1, H * W)
    output = (layer.weight.flatten(1) @ rows).view(N, -1, H, W)
    return output if layer.bias is None else output + layer.bias[:, None, None]

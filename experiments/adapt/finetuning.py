"""What people would otherwise do: tune some parameters of the last blocks and a classifier.

Four ways, by the same loop: the classifier alone, also the gains and biases of BatchNorm, also
low-rank changes of the 1×1 convolutions (LoRA; Hu et al., 2021), also all weights of these blocks.
The blocks below do not change, so what they compute is computed once. BatchNorm keeps its
statistics. Every image comes with its mirror image.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from neural_similarity.adapt import TrainingImages

__all__ = ["RATES", "WAYS", "BelowLastBlocks", "finetune"]

WAYS = ("head-only", "BatchNorm", "LoRA", "last blocks")
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
_RANK, _EPOCHS, _BATCH, _LAST = 4, 20, 16, 2


class _LowRank(nn.Module):
    """``W + U V``, with U zero at the start."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        O, rest = weight.shape[0], weight[0].numel()
        self.U = nn.Parameter(weight.new_zeros(O, _RANK))
        self.V = nn.Parameter(torch.randn(_RANK, rest) / rest**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + (self.U @ self.V).view_as(weight)


@dataclass(eq=False)
class BelowLastBlocks:
    """Maps ``(N, 2, C, H, W)``, of images and mirror images, that enter the last blocks."""

    maps: Tensor
    last: nn.Sequential

    @classmethod
    @torch.no_grad()
    def of(cls, data: TrainingImages) -> BelowLastBlocks:
        """Compute them for all images of a pool; the network is an ``EfficientNetLite``."""
        network = data.backbone.module
        blocks = list(cast(nn.Sequential, network.get_submodule("features")))
        below, last = nn.Sequential(*blocks[:-_LAST]), nn.Sequential(*blocks[-_LAST:])
        maps = []
        for rows in torch.arange(len(data)).split(32):
            pixels = data.pixels(rows)
            both = data.backbone.preprocessing.normalise(torch.cat([pixels, pixels.flip(3)]))
            outputs = below(both.contiguous(memory_format=torch.channels_last))
            maps.append(outputs.unflatten(0, (2, len(rows))).transpose(0, 1).contiguous())
        return cls(torch.cat(maps), last)


def finetune(
    way: str, below: BelowLastBlocks, rows: Tensor, labels: Tensor, n_train: int, rate: float
) -> tuple[float, int]:
    """The accuracy on the rows after the first ``n_train``, and how many parameters were tuned."""
    torch.manual_seed(0)
    n_way = int(labels.max()) + 1
    blocks = copy.deepcopy(below.last).eval().requires_grad_(False)
    head = nn.Linear(_features(blocks, below.maps), n_way)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    tuned = [*head.parameters(), *_choose(way, blocks)]
    optimiser = torch.optim.Adam(tuned, lr=rate)
    steps = _EPOCHS * -(-n_train // _BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    train = below.maps[rows[:n_train]]
    # Only the head changes: what it reads is computed once.
    fixed = _pooled(blocks, train.flatten(0, 1)) if way == "head-only" else None
    for _ in range(_EPOCHS):
        for batch in torch.randperm(n_train).split(_BATCH):
            sides = torch.randint(2, (len(batch),))
            if fixed is None:
                pooled = _pooled(blocks, train[batch, sides])
            else:
                pooled = fixed[2 * batch + sides]
            loss = F.cross_entropy(head(pooled), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    with torch.no_grad():
        predicted = head(_pooled(blocks, below.maps[rows[n_train:], 0])).argmax(1)
    correct = (predicted == labels[n_train:]).float().mean().item()
    return correct, sum(parameter.numel() for parameter in tuned)


def _choose(way: str, blocks: nn.Module) -> list[nn.Parameter]:
    """The parameters of the blocks that are tuned, now with gradients."""
    if way == "LoRA":
        for module in list(blocks.modules()):
            if isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1):
                parametrize.register_parametrization(module, "weight", _LowRank(module.weight))
        parameters = [p for name, p in blocks.named_parameters() if name.endswith((".U", ".V"))]
    elif way == "BatchNorm":
        norms = [m for m in blocks.modules() if isinstance(m, nn.BatchNorm2d)]
        parameters = [parameter for norm in norms for parameter in norm.parameters()]
    else:
        parameters = list(blocks.parameters()) if way == "last blocks" else []
    for parameter in parameters:
        parameter.requires_grad_()
    return parameters


def _pooled(blocks: nn.Module, maps: Tensor) -> Tensor:
    output: Tensor = blocks(maps.contiguous(memory_format=torch.channels_last))
    scale: float = output.shape[1] ** 0.5
    return F.normalize(output.mean((2, 3))) * scale


def _features(blocks: nn.Module, maps: Tensor) -> int:
    with torch.no_grad():
        return _pooled(blocks, maps[:1, 0]).shape[1]

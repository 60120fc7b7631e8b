"""Second derivatives and scores that must be the same with two processes as with one."""

import torch
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot import Tasks, as_tasks
from neural_similarity.fewshot.methods.gradient.maml import MAML

from .fewshot_runs import SMALL


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).double()


def network_of(method, convert):
    torch.manual_seed(1)
    network = ns.create_model("cnn9", 3, None, 1, 8, **SMALL.options).double()
    return convert(method.build(network, 3, (1, 8, 8)))


def meta_slopes(mine, convert=lambda model: model):
    """The gradient of MAML's loss on some of two tasks."""
    method = MAML(inner_steps=2, inner_lr=0.1)
    network = network_of(method, convert).train()
    drawn = numbers(2, 3, 6, 1, 8, 8)
    tasks = as_tasks(drawn[:, :, :2], drawn[:, :, 2:])
    loss = method.loss(network, Tasks(*(part[mine] for part in tasks)))
    return torch.autograd.grad(loss, list(network.parameters()))


def penalty_slopes(mine, convert=lambda model: model):
    """The gradient of the size of a gradient, with respect to some of eight images."""
    norm = convert(nn.Sequential(nn.BatchNorm2d(3))).double()
    images, weights = numbers(2, 8, 3, 2, 2)[:, mine]
    images.requires_grad_()
    loss = (norm(images).pow(3) * weights).sum()
    (slope,) = torch.autograd.grad(loss, images, create_graph=True)
    (second,) = torch.autograd.grad((slope * weights).square().sum(), images)
    return second


def validated(convert=lambda model: model):
    """Scores of an episode by batch statistics, and what BatchNorm remembers afterwards."""
    method = MAML(batch_norm="batch", inner_steps=2)
    network = network_of(method, convert).eval()
    drawn = numbers(1, 3, 6, 1, 8, 8)
    scores = method.scores(network, drawn[:, :, :2], drawn[:, :, 2:].flatten(1, 2)).detach()
    return scores, *network.buffers()

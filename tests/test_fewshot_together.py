"""Second derivatives through BatchNorm of two processes, and episodes that are nobody else's."""

import torch
from fewshot_runs import SMALL, torchrun
from torch import nn

import neural_similarity as ns
from neural_similarity.fewshot.maml import MAML
from neural_similarity.fewshot.protocol import Tasks, as_tasks

SCRIPT = """
import sys
import torch
from neural_similarity.train.distributed import join_world, synchronise_batch_norm
from test_fewshot_together import meta_slopes, penalty_slopes, validated

with join_world("cpu") as world:
    own = slice(world.rank, world.rank + 1)
    meta = [world.sum(slope) / 2 for slope in meta_slopes(own, synchronise_batch_norm)]
    half = slice(4 * world.rank, 4 * world.rank + 4)
    whole = torch.zeros(8, 3, 2, 2, dtype=torch.float64)
    whole[half] = penalty_slopes(half, synchronise_batch_norm)
    # Only one process has an episode: it must not wait for the other.
    scores = validated(synchronise_batch_norm) if world.first else None
    penalty = world.sum(whole)
    if world.first:
        torch.save((meta, penalty, scores), sys.argv[1])
"""


def numbers(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3)).double()


def learner_of(method, convert):
    torch.manual_seed(1)
    network = ns.create_model("cnn9", 3, None, 1, 8, **SMALL.options).double()
    return convert(method.build(network, 3, (1, 8, 8)))


def meta_slopes(mine, convert=lambda model: model):
    """The gradient of MAML's loss of some of two tasks."""
    method = MAML(inner_steps=2, inner_lr=0.1)
    learner = learner_of(method, convert).train()
    drawn = numbers(2, 3, 6, 1, 8, 8)
    tasks = as_tasks(drawn[:, :, :2], drawn[:, :, 2:])
    loss = method.loss(learner, Tasks(*(part[mine] for part in tasks)))
    return torch.autograd.grad(loss, list(learner.parameters()))


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
    learner = learner_of(method, convert).eval()
    drawn = numbers(1, 3, 6, 1, 8, 8)
    scores = method.scores(learner, drawn[:, :, :2], drawn[:, :, 2:].flatten(1, 2)).detach()
    return scores, *learner.buffers()


def test_two_processes_with_synchronised_batch_norm_find_what_one_finds(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    done = torchrun(tmp_path / "script.py", tmp_path / "found.pt")
    assert done.returncode == 0, done.stderr
    found = torch.load(tmp_path / "found.pt")
    wanted = (meta_slopes(slice(None)), penalty_slopes(slice(None)), validated())
    for ours, theirs in zip(found, wanted, strict=True):
        # In float64, summed in another order.
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)
    assert all(slope.abs().max() > 1e-6 for slope in (*wanted[0][-2:], wanted[1]))

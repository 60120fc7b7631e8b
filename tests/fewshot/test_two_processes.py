"""Second derivatives through BatchNorm over two processes, and episodes of only one of them."""

import pytest
import torch
from support.fewshot_runs import torchrun
from support.meta_slopes import meta_slopes, penalty_slopes, validated

SCRIPT = """
import sys
import torch
from neural_similarity.train.distributed import join_world, synchronise_batch_norm
from support.meta_slopes import meta_slopes, penalty_slopes, validated

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


@pytest.mark.slow
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

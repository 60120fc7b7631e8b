"""Two processes train as one; a lost one is restarted."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.command import nsl_process
from torch import nn

from neural_similarity.errors import RunError
from neural_similarity.train.distributed import World, synchronise_batch_norm

SMALL = (
    "train", "--set", "options.width=4", "--set", "options.hidden=8", "--set", "hidden=4",
    "--batch-size", "314", "--threads", "1", "--set", "log_every=1", "--lr", "0.02",
)  # fmt: skip
PAIR = ("support.worlds:pair", "support.forks:nsl_here")


def torchrun(*arguments, cwd, restarts=0):
    """The command under torchrun, with two processes."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    command = (*launcher, "--max-restarts", str(restarts), "-m", "neural_similarity", *arguments)
    return subprocess.Popen(
        [sys.executable, *command], cwd=cwd, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


def metrics(folder, kind):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("kind", ["static", pytest.param("dynamic", marks=pytest.mark.slow)])
def test_two_processes_equal_one_with_the_whole_batch(tmp_path, kind, forks):
    arguments = (*SMALL, "--similarity", kind, "--epochs", "2", "--set", "sync_batch_norm=true")
    two = forks.call(*PAIR, *arguments, "--out", "two", cwd=tmp_path)
    assert two.code == 0, two.err
    assert two.out.count(kind) == 1  # the table, from the first process alone
    one = forks.nsl(*arguments, "--out", "one", cwd=tmp_path)
    assert one.code == 0, one.err
    # Sums over two halves round otherwise than a sum over the whole. In float32 that is about
    # 1e-7 of a number, and eight steps at this rate were seen to let it grow to 1e-4 at most.
    a, b = (metrics(tmp_path / name, "train") for name in ("one", "two"))
    assert [m["loss"] for m in b] == pytest.approx([m["loss"] for m in a], rel=1e-3)
    x, y = (load_file(tmp_path / name / "last.safetensors") for name in ("one", "two"))
    for key in x:
        scale = x[key].abs().max().clamp(min=1e-2)
        assert ((x[key] - y[key]).abs().max() / scale) < 1e-2, key
    evaluated = [[m["images"] for m in metrics(tmp_path / n, "eval")] for n in ("one", "two")]
    assert evaluated == [[539, 539]] * 2
    assert json.loads((tmp_path / "two" / "environment.json").read_text())[0]["processes"] == 2


@pytest.mark.slow
def test_a_lost_process_is_restarted_and_the_run_finishes(tmp_path):
    arguments = (*SMALL, "--epochs", "20", "--set", "checkpoint_minutes=0")
    process = torchrun(*arguments, "--out", "run", cwd=tmp_path, restarts=2)
    lines = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not lines.exists() or len(lines.read_text().splitlines()) < 20:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(worker_of(process.pid, rank=1), signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    assert [m["step"] for m in metrics(tmp_path / "run", "train")] == list(range(1, 81))
    starts = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert len(starts) == 2


def worker_of(parent, rank):
    """The process of a rank, found among torchrun's children."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "status").read_text()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        mine = f"\nPPid:\t{parent}\n" in status
        if mine and f"\0RANK={rank}\0".encode() in b"\0" + environment:
            return int(entry.name)
    raise AssertionError("no such process")


@pytest.mark.slow
def test_what_is_reported_is_the_error_of_the_weights_that_are_kept(tmp_path):
    """Without synchronised BatchNorm every process has statistics of its own; one's are kept."""
    rates = ("--set", "schedule=constant", "--batch-size", "16", "--steps", "30")
    process = torchrun(*SMALL, *rates, "--out", "run", cwd=tmp_path)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    (reported,) = metrics(tmp_path / "run", "eval")
    measured = json.loads(nsl_process("eval", "run", "--json", cwd=tmp_path).out)
    assert measured["errors"] == round(reported["error"] * 539)
    assert measured["loss"] == pytest.approx(reported["loss"], rel=1e-5)


def test_a_batch_that_cannot_be_shared_ends_in_a_clear_line(tmp_path, forks):
    words = ("train", "--batch-size", "33", "--epochs", "1", "--out", "run")
    ended = forks.call(*PAIR, *words, cwd=tmp_path)
    assert ended.code == 2
    line = (
        "nsl: train_loader: expected a batch that can be divided among 2 processes, got 33 images"
    )
    assert line in ended.err
    assert not (tmp_path / "run").exists()


def test_synchronised_batch_norm_of_one_process_is_batch_norm(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        plain = nn.BatchNorm2d(3, momentum=0.3).double()
        ours = synchronise_batch_norm(nn.Sequential(nn.BatchNorm2d(3, momentum=0.3))).double()[0]
        nn.init.normal_(plain.weight)
        nn.init.normal_(plain.bias)
        ours.load_state_dict(plain.state_dict())
        x = torch.randn(4, 3, 5, 6, dtype=torch.float64) * 3 + 1
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        weights = torch.randn(4, 3, 5, 6, dtype=torch.float64)
        outputs = [norm(i) for norm, i in zip((plain, ours), inputs, strict=True)]
        torch.testing.assert_close(outputs[0], outputs[1])
        for output in outputs:
            (output * weights).sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
        torch.testing.assert_close(plain.weight.grad, ours.weight.grad)
        torch.testing.assert_close(plain.state_dict(), ours.state_dict())
        torch.testing.assert_close(plain.eval()(x), ours.eval()(x))
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("error", [None, RunError("damaged")])
def test_all_processes_get_what_the_first_one_reads(monkeypatch, error):
    sent = []

    def broadcast(answer, source, device):
        assert source == 0
        if sent:
            answer[:] = sent[0]
        else:
            sent.append(list(answer))

    def read():
        calls.append(1)
        if error is not None:
            raise error
        return [1, 2]

    calls = []
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", broadcast)
    for rank in (0, 1):
        with pytest.raises(RunError, match="damaged") if error else nullcontext():
            assert World(rank, 2).from_first(read) == [1, 2]
    assert calls == [1]
    with pytest.raises(RunError, match="damaged") if error else nullcontext():
        assert World().from_first(read) == [1, 2]

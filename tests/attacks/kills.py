"""Every command that writes, the files next to it, and how to tell complete from torn results."""

import hashlib
import json
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from safetensors.numpy import load_file
from support.adapt_cases import backbone, pictures
from support.data_files import cifar10_files, cifar10_source, md5
from support.fewshot_runs import SMALL as FEWSHOT
from support.forks import Stop

from neural_similarity.adapt import save_backbone
from neural_similarity.data.fetching.sources import SOURCES, RemoteFile, Source

_SMALL = {
    "options": {"width": 4, "hidden": 8}, "hidden": 4, "batch_size": 600, "epochs": 2.0,
    "log_every": 1, "lr": 0.02, "threads": 1,
}  # fmt: skip
_TRAIN = ("train", "--config", "small.json")
_BOTH = (*_TRAIN, "--similarity", "none,static")
_ADAPT = ("adapt", "images", "--backbone", "backbone.safetensors", "--no-onnx", "--folds", "2",
          "--method", "proto")  # fmt: skip
_SMOKE = ("--budget", "smoke", "--seeds", "1", "--rows", "cnn")


@dataclass(frozen=True)
class Command:
    """A command, in a folder of its own.

    Attributes:
        words: the command; files of the user are beside it.
        out: what it writes.
        old: the name of the command, if any, whose result stands at ``out`` before.
        replaces: whether old or new must be whole at any moment, without any other command.
    """

    words: tuple[str, ...]
    out: str = "out"
    old: str | None = None
    replaces: bool = False


COMMANDS = {
    "train": Command((*_TRAIN, "--out", "out")),
    "train again": Command((*_TRAIN, "--out", "out", "--force"), old="train"),
    "comparison": Command((*_BOTH, "--out", "out")),
    "comparison again": Command((*_BOTH, "--out", "out", "--force"), old="comparison"),
    "comparison over a run": Command((*_BOTH, "--out", "out", "--force"), old="train"),
    "fewshot": Command(
        ("fewshot", "--config", "tiny.json", "--method", "proto,static", "--shots", "1", "--out",
         "out")
    ),
    "adapt": Command((*_ADAPT, "--out", "out")),
    "adapt again": Command((*_ADAPT, "--out", "out", "--force"), old="adapt", replaces=True),
    "data get": Command(("data", "get", "cifar10", "--data-dir", "out")),
    "data get again": Command(
        ("data", "get", "cifar10", "--data-dir", "out", "--force"), old="other data", replaces=True
    ),
    "merge": Command(("merge", "run", "--out", "out.safetensors"), "out.safetensors"),
    "merge again": Command(
        ("merge", "run", "--out", "out.safetensors", "--force"), "out.safetensors", "merge", True
    ),
    "export": Command(
        ("export", "run", "--format", "torch-export", "--out", "out.pt2"), "out.pt2"
    ),
    "inspect": Command(("inspect", "run", "--out", "out")),
    "save_similarity": Command(("attacks.kills:save_similarity",), "out.safetensors"),
    "reproduce": Command(
        ("reproduce", "table4", *_SMOKE, "--results", "out/results", "--work", "out/work")
    ),
}  # fmt: skip
QUICK = ("adapt again", "data get", "data get again", "save_similarity")
"""Those of the sample that every run of the tests takes."""


def save_similarity() -> None:
    """A function that writes, and no command."""
    import torch

    import neural_similarity as ns

    torch.manual_seed(0)
    model = ns.create_model("cnn9", 3, ns.StaticSimilarity("diagonal"), width=4)
    try:
        ns.save_similarity(model, "out.safetensors")
    except KeyboardInterrupt:  # a command would end like this
        raise SystemExit(130) from None


def set_source(url: str, checksum: str, size: int, names: str) -> None:
    """Fetch CIFAR-10 from a server of the tests."""
    folder = "cifar-10-batches-py"
    remote = RemoteFile(url, checksum, folder, int(size), archive=True)
    SOURCES["cifar10"] = Source((remote,), (folder, ""), json.loads(names))


def setup(server) -> list:
    """What makes a child fetch from this server."""
    source = cifar10_source(server)
    (remote,) = source.files
    names = json.dumps(dict(source.names))
    return ["attacks.kills:set_source", remote.url, remote.checksum, remote.size, names]


def write_inputs(folder: Path) -> None:
    """What the commands read: the user's files, which must stay as they are."""
    (folder / "small.json").write_text(json.dumps(_SMALL))
    settings = {k: v for k, v in FEWSHOT.to_dict().items() if k != "method"}
    quick = {"steps": 4, "episodes": 4, "val_episodes": 4}
    (folder / "tiny.json").write_text(json.dumps({**settings, **quick}))
    (folder / "notes.txt").write_text("mine")
    for number, (image, label) in enumerate(zip(*pictures((4, 3), size=(12, 9)), strict=True)):
        (folder / "images" / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "images" / label / f"{number}.png")
    made = backbone()
    save_backbone(folder / "backbone.safetensors", made.module, made.source, made.preprocessing)
    (folder / "other" / "cifar-10-batches-py").mkdir(parents=True)
    for name, content in cifar10_files(per_batch=10).items():
        (folder / "other" / "cifar-10-batches-py" / name).write_bytes(content)


def content(path: Path) -> dict[str, str]:
    """Every file at a path with what decides its content: not the time it took to make it."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(file.relative_to(path.parent)): _digest(file) for file in files}


def _digest(file: Path) -> str:
    if file.suffix == ".safetensors":
        tensors = load_file(file)
        parts = [name.encode() + tensors[name].tobytes() for name in sorted(tensors)]
        return hashlib.sha256(b"".join(parts)).hexdigest()
    if "results" in file.parts and file.suffix == ".json":
        record = json.loads(file.read_text())
        return json.dumps([record.get("accuracies"), record.get("error")])
    timed = (".html", ".png", ".jsonl", ".pt2", ".commits", ".lock")
    if file.suffix in timed or file.name == "environment.json":
        assert file.stat().st_size or file.suffix in (".jsonl", ".lock"), f"{file} is empty"
        return "made"
    return md5(file.read_bytes())


def leftovers(folder: Path) -> list[Path]:
    """What only a killed command leaves."""
    return [p for p in folder.rglob("*") if p.name.startswith(".nsl-") or p.suffix == ".part"]


def prepare(case: Path, inputs: Path, command: Command, results: Callable[[str], Path]) -> None:
    """A folder for a case: the user's files, and the old result if there is one."""
    shutil.copytree(inputs, case)
    if "run" in command.words:
        shutil.copytree(results("static run"), case / "run")
    if command.old == "other data":
        (case / "other").rename(case / command.out)
    elif command.old is not None:
        old = results(command.old)
        copy = shutil.copytree if old.is_dir() else shutil.copy
        copy(old, case / command.out)


def draw_stop(draw: random.Random, steps: dict[str, float]) -> Stop:
    """A random moment of a command that took these steps; most are changes of the disk."""
    if draw.random() < 0.75:
        kill = draw.random() < 0.75
        sent = signal.SIGKILL if kill else draw.choice([signal.SIGINT, signal.SIGTERM])
        return Stop("change", draw.randint(1, int(steps["change"])), sent)
    return Stop("cpu", max(0.001, draw.random() * steps["cpu"]), signal.SIGPROF)

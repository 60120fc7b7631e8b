"""Every kind of file that the library reads, and what reads it; made without training."""

import json
import math
import pickle
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attacks.files import JSON, LINES, METADATA, Codec
from PIL import Image
from support.adapt_cases import PREDICTOR, SEEN, backbone, pictures
from support.fake_data import write_photos
from support.fewshot_runs import SMALL as FEWSHOT
from support.networks import PlainCNN
from support.train_runs import SMALL as TRAIN
from torch.nn import functional as F

import neural_similarity as ns
from neural_similarity._json import build
from neural_similarity.adapt import load_backbone
from neural_similarity.adapt.backbones.files import save_backbone
from neural_similarity.data import MemorySet, load_dataset
from neural_similarity.data._cache import cached_set
from neural_similarity.data.fetching.archives import unpack
from neural_similarity.data.images import decode_image, quietly, read_image
from neural_similarity.data.sets import fashion_mnist, mini_imagenet
from neural_similarity.data.sets._pickles import read_plain_pickle
from neural_similarity.fewshot import FewShotRun
from neural_similarity.fewshot.result_file import ResultFile, _accuracies_so_far
from neural_similarity.train import Run, TrainConfig
from neural_similarity.train.build import build_model, build_optimizer
from neural_similarity.train.checkpoint import (
    read_step,
    resume_checkpoint,
    write_checkpoint,
    write_weights,
)
from neural_similarity.train.config import read_settings
from neural_similarity.train.distributed import World
from neural_similarity.train.loop import Progress
from neural_similarity.train.runs.comparisons import read_comparison, write_comparison


@dataclass(frozen=True)
class FileKind:
    """A file among others, and what reads it.

    Attributes:
        make: writes a folder, and returns the file in it that is attacked.
        load: reads the folder, the file included.
        codec: how the file is seen as JSON; None if it contains none.
        tensors: whether it is a safetensors file.
        bytes: how many places are damaged.
        cached: whether the file is in the cache, which is then ``folder / "cache"``.
    """

    make: Callable[[Path], Path]
    load: Callable[[Path], object]
    codec: Codec | None = None
    tensors: bool = False
    bytes: int = 60
    cached: bool = False


FACTS = {
    "classes": ["a", "b", "c"], "in_channels": 1, "image_size": 8, "mean": [0.5], "std": [0.2],
    "data_copies": {"train": "x", "test": "y"}, "evaluated_on": "test", "skipped_images": 0,
}  # fmt: skip
LINE = {"step": 1, "epoch": 0.5, "seconds": 0.1, "loss": 2.0, "error": 0.5}
RESULT_ABOUT = {
    "fingerprint": "f", "data_copy": "x", "weights": "last", "weights_step": 1, "config": {},
}  # fmt: skip


def _run(run: Any, model: torch.nn.Module) -> None:
    """Write all files of a run that made one step."""
    run.create()
    run.remember_start(FACTS, World())
    optimizer = build_optimizer(run.config, model)
    model.train()
    F.cross_entropy(model(torch.rand(4, 1, 8, 8)).flatten(1), torch.arange(4) % 3).backward()
    optimizer.step()
    progress = Progress(step=1, seconds=0.1, best_error=math.inf, finished=True)
    write_checkpoint(run.folder, model, optimizer, asdict(progress))
    write_weights(run.folder / "best.safetensors", model, {"step": 1, "error": 0.5})
    lines = [
        {"kind": "train", **LINE, "lr": 0.1, "images_per_second": 9.0, "step_seconds": 0.1},
        {"kind": "eval", **LINE, "images": 20},
    ]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))


_TRAIN = replace(
    TRAIN, optimizer="adam", similarity="dynamic", shared=True,
    options={"width": 2, "depths": [1, 1, 1], "hidden": None},
)  # fmt: skip


def _train_run(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        run = Run(folder / "run", _TRAIN)
        _run(run, build_model(_TRAIN, 3, 1, 8))
        return run.folder / name

    return make


def _load_run(folder: Path) -> None:
    run = Run.open(folder / "run")
    run.metrics(), run.normalisation()
    run.load_model("best")


def _resume_run(folder: Path) -> None:
    run = Run(folder / "run", _TRAIN)
    model = build_model(_TRAIN, 3, 1, 8)
    optimizer = build_optimizer(_TRAIN, model)
    checkpoint = resume_checkpoint(run.folder, model, optimizer)
    build(Progress, checkpoint, run.folder, ns.RunError, others=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def _fewshot_run(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        run = FewShotRun(folder / "run", replace(FEWSHOT, method="finetune"))
        _run(run, run.build_network(3, 1, 8))
        (run.folder / "results").mkdir()
        result = {
            "mean": 0.5, "interval": math.inf, "inference": "inductive", "episodes": 1,
            "method": "proto", "method_options": {}, "n_way": 3, "n_shot": 1, "n_query": 2,
            "episode_seed": 0, "adapted": 0, "batch_norm": "running", "data": "tiny",
            "seconds": 0.1, **RESULT_ABOUT, "accuracies": [0.5],
        }  # fmt: skip
        lines = [RESULT_ABOUT, {"first": 0, "accuracies": [0.5, 1.0], "seconds": 0.5},
                 {"first": 2, "accuracies": [0.25], "seconds": 0.5}]  # fmt: skip
        (run.folder / "results" / "one.json").write_text(json.dumps(result))
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (run.folder / "results" / "one.partial.jsonl").write_text(text)
        return run.folder / name

    return make


def _load_fewshot_run(folder: Path) -> None:
    run = FewShotRun.open(folder / "run")
    run.metrics(), run.results(), run.trained_classes()
    run.load_network()
    read_step(run.weights("best"))
    about = RESULT_ABOUT
    ResultFile(run.folder / "results" / "one.json", about).read()
    sum(line["seconds"] for line in _accuracies_so_far(
        run.folder / "results" / "one.partial.jsonl", about))  # fmt: skip


def _comparison(folder: Path) -> Path:
    write_comparison(folder / "runs", {"none": TRAIN}, force=False)
    return folder / "runs" / "comparison.json"


def _similarity(config: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        torch.manual_seed(1)
        model = ns.attach(PlainCNN(), config)
        ns.save_similarity(model, folder / "similarity")
        return folder / "similarity"

    return make


def _load_similarity(folder: Path) -> None:
    ns.load_similarity(PlainCNN(), folder / "similarity")


@cache
def _fitted() -> ns.FewShotClassifier:
    return ns.FewShotClassifier("dynamic", backbone(PREDICTOR), folds=2).fit(*pictures((2, 2)))


def _adapted(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        _fitted().save(folder / "birds")
        return folder / "birds" / name

    return make


def _load_adapted(folder: Path) -> None:
    classifier = ns.FewShotClassifier.load(folder / "birds")
    classifier.adapted().examples.labels.bincount()
    repr(classifier), repr(classifier.cross_validation_)


def _backbone(folder: Path) -> Path:
    made = backbone(PREDICTOR)
    save_backbone(folder / "a.safetensors", made.module, made.source, SEEN, card="a card")
    return folder / "a.safetensors"


def _settings(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        text = json.dumps(TRAIN.to_dict()) if name.endswith("json") else "lr = 1\n[options]\na=[1]"
        (folder / name).write_text(text)
        return folder / name

    return make


def _load_settings(folder: Path) -> None:
    TrainConfig.from_dict(read_settings(next(folder.iterdir())))


def _photos(folder: Path) -> Path:
    photos = write_photos(folder / "photos", each=2)
    (photos / "cat" / "bad.png").write_bytes(b"bad")
    load_dataset("imagefolder", "train", photos)
    return next((folder / "cache").glob("checked-images-*.json"))


def _cached(folder: Path) -> MemorySet:
    images = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)
    return cached_set("name", "key", lambda: MemorySet.of("n", images, torch.arange(2), ("a", "b")))


def _cached_file(folder: Path) -> Path:
    _cached(folder)
    return folder / "cache" / "name-key.safetensors"


def _image(format: str, mode: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        file = folder / f"image.{format}"
        Image.effect_noise((24, 18), 90).convert(mode).save(file)
        return file

    return make


def _load_image(folder: Path) -> None:
    file = next(folder.glob("image.*"))
    with quietly():
        decode_image(file)
        read_image(file, (8, 8))


def _pickle(folder: Path) -> Path:
    rows = np.random.default_rng(0).integers(0, 256, (2, 3072), dtype=np.uint8)
    file = folder / "data_batch_1"
    file.write_bytes(pickle.dumps({"data": rows, "labels": [0, 9], "batch_label": "one"}))
    return file


def _archive(suffix: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        inside = folder / "inside" / "birds"
        inside.mkdir(parents=True)
        (inside / "a.txt").write_bytes(bytes(range(256)) * 3)
        (inside / "b.txt").write_bytes(b"b")
        shutil.make_archive(str(folder / "birds"), suffix, folder / "inside", "birds")
        return next(folder.glob("birds.*"))

    return make


def _unpack(folder: Path) -> None:
    """Unpack, and find nothing outside of the target, and nothing half in it."""
    before = set(folder.rglob("*"))
    target = folder / "out" / "birds"
    target.parent.mkdir(exist_ok=True)
    try:
        unpack(next(folder.glob("birds.*")), target)
    finally:
        new = set(folder.rglob("*")) - before - {target.parent}
        assert all(target == path or target in path.parents for path in new), new
        shutil.rmtree(folder / "out")


def _table(folder: Path) -> Path:
    (folder / "train.csv").write_text("filename,label\na.jpg,cat\nb.jpg,dog\n")
    return folder / "train.csv"


def _idx(folder: Path) -> Path:
    file = folder / "images-idx3-ubyte"
    file.write_bytes(bytes((0, 0, 8, 3)) + bytes((0, 0, 0, 2) * 3) + bytes(8))
    return file


KINDS = {
    "config of a run": FileKind(_train_run("config.json"), _load_run, JSON, bytes=20),
    "environment": FileKind(_train_run("environment.json"), _load_run, JSON, bytes=20),
    "metrics": FileKind(_train_run("metrics.jsonl"), _load_run, LINES, bytes=20),
    "checkpoint": FileKind(_train_run("last.safetensors"), _resume_run, METADATA, True),
    "optimiser": FileKind(
        _train_run("last-1.optimizer.safetensors"), _resume_run, METADATA, True, bytes=40
    ),
    "config of a few-shot run": FileKind(
        _fewshot_run("config.json"), _load_fewshot_run, JSON, bytes=20
    ),
    "best weights": FileKind(_fewshot_run("best.safetensors"), _load_fewshot_run, METADATA, True),
    "result": FileKind(_fewshot_run("results/one.json"), _load_fewshot_run, JSON, bytes=20),
    "test under way": FileKind(
        _fewshot_run("results/one.partial.jsonl"), _load_fewshot_run, LINES, bytes=20
    ),
    "comparison": FileKind(
        _comparison, lambda folder: read_comparison(folder / "runs", TrainConfig), JSON
    ),
    "static similarity": FileKind(
        _similarity(ns.StaticSimilarity(ns.structures.KernelShape("sparse"))),
        _load_similarity, METADATA, True,
    ),
    "dynamic similarity": FileKind(
        _similarity(ns.DynamicSimilarity(shared=True, predictor=ns.SpherePredictor(hidden=2))),
        _load_similarity, METADATA, True,
    ),
    "adapted model": FileKind(_adapted("model.safetensors"), _load_adapted, METADATA, True),
    "examples": FileKind(_adapted("examples.safetensors"), _load_adapted, METADATA, True),
    "backbone": FileKind(
        _backbone, lambda folder: load_backbone(folder / "a.safetensors"), METADATA, True
    ),
    "settings in JSON": FileKind(_settings("a.json"), _load_settings, JSON),
    "settings in TOML": FileKind(_settings("a.toml"), _load_settings),
    "checked images": FileKind(
        _photos, lambda folder: load_dataset("imagefolder", "train", folder / "photos"), JSON,
        cached=True,
    ),
    "cached images": FileKind(_cached_file, _cached, None, True, cached=True),
    "PNG": FileKind(_image("png", "RGBA"), _load_image, bytes=100),
    "JPEG": FileKind(_image("jpg", "CMYK"), _load_image, bytes=100),
    "GIF": FileKind(_image("gif", "P"), _load_image, bytes=100),
    "TIFF": FileKind(_image("tif", "L"), _load_image, bytes=100),
    "WebP": FileKind(_image("webp", "RGB"), _load_image, bytes=100),
    "pickle": FileKind(
        _pickle, lambda folder: read_plain_pickle(folder / "data_batch_1"), bytes=600
    ),
    "tar": FileKind(_archive("tar"), _unpack, bytes=300),
    "tar.gz": FileKind(_archive("gztar"), _unpack, bytes=300),
    "zip": FileKind(_archive("zip"), _unpack, bytes=300),
    "csv": FileKind(_table, lambda folder: mini_imagenet._rows(folder / "train.csv")),
    "idx": FileKind(_idx, lambda folder: fashion_mnist.read_idx(folder / "images-idx3-ubyte", 3)),
}  # fmt: skip
"""By name."""

"""Replacements of files and folders, each in every possible way."""

import json
import os
import signal
from contextlib import nullcontext
from pathlib import Path

from support.data_files import zipped

from neural_similarity import _io
from neural_similarity.adapt import FewShotClassifier
from neural_similarity.cli.shared.signals import ends_on_sigterm
from neural_similarity.data.fetching.archives import unpack
from neural_similarity.train import Run, TrainConfig

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
WAYS = ("exchange", "files", "inside")
"""Folders are swapped in one step; file by file; and while somebody works in the old one."""
OLD = {"model": "old model", "labels": "old labels", "only-old": "gone afterwards"}
NEW = {"model": "new model", "labels": "new labels", "only-new": "not there before"}


def _file(new: Path, out: Path) -> None:
    _io.write_file(out, b"new")


def _folder(new: Path, out: Path) -> None:
    with _io.whole_folder(out) as folder:
        for name, text in NEW.items():
            (folder / name).write_text(text)


def _adapted(new: Path, out: Path) -> None:
    FewShotClassifier.load(new / "out").save(out, force=True)


def _data(new: Path, out: Path) -> None:
    unpack(new / "out.zip", out, replace=True)


def _run(new: Path, out: Path) -> None:
    run = Run(out, TrainConfig(seed=1))
    with run.alone():
        run.create(force=True)


KINDS = {"file": _file, "folder": _folder, "adapted": _adapted, "data": _data, "run": _run}


def write_old(kind: str, out: Path, adapted: Path) -> None:
    """What is replaced; ``adapted`` is the folder of a classifier."""
    if kind == "file":
        out.write_bytes(b"old")
        return
    out.mkdir()
    if kind == "adapted":
        for file in adapted.iterdir():
            (out / file.name).write_bytes(file.read_bytes() + b" " * file.name.endswith(".txt"))
    elif kind == "run":
        settings = TrainConfig(seed=0).to_dict()
        (out / "none").mkdir()
        for folder in (out, out / "none"):
            (folder / "metrics.jsonl").write_text("")
        (out / "none" / "config.json").write_text(json.dumps(settings))
        (out / "comparison.json").write_text(json.dumps({"none": settings}))
    else:
        for name, text in OLD.items():
            (out / name).write_text(text)


def write_new(kind: str, new: Path, adapted: Path) -> None:
    """What a replacement reads."""
    new.mkdir()
    if kind == "adapted":
        (new / "out").symlink_to(adapted)
    if kind == "data":
        (new / "out.zip").write_bytes(zipped({f"out/{k}": v.encode() for k, v in NEW.items()}))


def replace(kind: str, way: str, handled: str, new: str, out: str) -> None:
    """Carry out a replacement; ``handled`` is whether SIGTERM ends it as our commands let it."""
    if way != "exchange":
        _io.folders.exchange = lambda new, old: False
    if way == "inside" and Path(out).is_dir():
        os.chdir(out)
    try:
        with ends_on_sigterm() if handled == "True" else nullcontext():
            KINDS[kind](Path(new), Path(out))
    except KeyboardInterrupt:
        raise SystemExit(130) from None

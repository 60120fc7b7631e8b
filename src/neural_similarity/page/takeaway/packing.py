"""Pack the classifier: train as ``nsl adapt`` does, write its folder, and zip it."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch

from ..._io import scratch_folder, whole_file
from ...adapt import FewShotClassifier, embed_images, open_cache
from ...adapt.deliver import write_all
from ...data import FolderSet
from ...data.image_sets import Skipped
from ...errors import ExportError, NeuralSimilarityError
from ...export.onnx import check_packages
from ..engine import Engine, Lesson
from ..engine.lesson import ALL_METHODS
from ..project import PRIVATE, Picture
from ..project.names import safe_stem
from ..refused import RefusedError
from .browser_page import write_browser_page
from .runtime import has_runtime

__all__ = ["Packing"]

_LOGGER = logging.getLogger("neural_similarity")
_PACKED = (".onnx", ".png", ".safetensors", ".html")  # compression would gain little, and take long


class Packing:
    """Makes the zip on request, in a separate thread.

    Args:
        engine: the engine that has trained.
        on_news: called from that thread whenever there is something new to show.
    """

    def __init__(self, engine: Engine, on_news: Callable[[], None] = lambda: None) -> None:
        self.engine, self.project, self.on_news = engine, engine.project, on_news
        self.name = safe_stem(self.project.folder.name)
        self._file = self.project.folder / PRIVATE / "take-away.zip"
        self._file.unlink(missing_ok=True)  # from an earlier run, with unknown contents
        self._lock = Lock()
        self._state: dict[str, Any] = {"state": "none"}
        self._pictures: tuple[Picture, ...] = ()
        self._thread: Thread | None = None
        self._is_stopped = False

    @property
    def file(self) -> Path:
        """The zip, once it exists."""
        if self._state["state"] != "ready":
            raise RefusedError("There is nothing to take away yet.", 404)
        return self._file

    def describe(self, readable: tuple[Picture, ...]) -> dict[str, Any]:
        """The state for the page; ``readable`` are the pictures of the project now."""
        return {
            **self._state,
            "folder": self.name,
            "is_current": readable == self._pictures,
            "has_onnx": _has_onnx(),
            "has_browser_page": _has_onnx() and has_runtime(),
        }

    def start(self) -> None:
        """Start; :meth:`describe` reports the progress."""
        lesson = self.engine.lesson
        if lesson is None:
            raise RefusedError("There is nothing to take away yet: teach two classes first.", 409)
        with self._lock:
            if self._is_stopped:
                raise RefusedError("The page was closed.", 409)
            if self._state["state"] == "working":
                raise RefusedError("The model is already being packed.", 409)
            self._state = {"state": "working", "step": "images", "done": 0, "total": 0}
            self._thread = Thread(target=self._run, args=(lesson,), name="nsl-teach-pack")
            self._thread.start()

    def stop(self) -> None:
        """End after the current step: PyTorch aborts if Python ends while it computes."""
        with self._lock:
            self._is_stopped = True
        if self._thread is not None:
            self._thread.join()

    def _run(self, lesson: Lesson) -> None:
        try:
            self._pack(lesson)
            size = self._file.stat().st_size
            self._pictures = lesson.examples.pictures
            self._report({"state": "ready", "bytes": size, "name": f"{self.name}.zip"})
        except Exception as error:  # the page shows it, and the next attempt may succeed
            if not isinstance(error, OSError | NeuralSimilarityError):
                _LOGGER.exception("neural_similarity: packing failed")
            self._report({"state": "failed", "message": _sentence(error)})

    def _pack(self, lesson: Lesson) -> None:
        dataset = self._dataset(lesson)
        classifier = self._classifier(dataset)
        self._report({"state": "working", "step": "writing", "done": 0, "total": 0})
        with scratch_folder(self._file.parent) as folder:
            write_all(classifier, dataset, folder, Path(self.name), _has_onnx())
            if _has_onnx() and has_runtime():
                write_browser_page(folder, self.name)
            with whole_file(self._file) as file:
                _zip(folder, file, self.name)

    def _classifier(self, dataset: FolderSet) -> FewShotClassifier:
        """The classifier that ``nsl adapt`` would make of these pictures."""

        def on_progress(step: str, done: int, total: int) -> None:
            self._report({"state": "working", "step": step, "done": done, "total": total})

        backbone = self.engine.backbone
        data = embed_images(
            backbone, dataset.paths, dataset.labels, len(dataset.classes),
            lambda done, total: on_progress("images", done, total), open_cache(backbone),
        )  # fmt: skip
        classifier = FewShotClassifier(backbone=backbone)
        return classifier.fit_embedded(data, dataset.classes, ALL_METHODS, on_progress)

    def _dataset(self, lesson: Lesson) -> FolderSet:
        labels, pictures = lesson.examples.labels, lesson.examples.pictures
        folder, trouble = self.project.folder, self.engine.features.trouble
        files = tuple(picture.file for picture in pictures)
        sizes = repr([(picture.file, picture.size) for picture in pictures])
        return FolderSet(
            name="imagefolder",
            root=folder,
            files=files,
            labels=torch.tensor([labels.index(picture.label) for picture in pictures]),
            classes=labels,
            image_size=(1, 1),
            fingerprint=hashlib.sha256(sizes.encode()).hexdigest()[:12],
            skipped=tuple(
                Skipped(folder / picture.file, trouble[picture.version])
                for picture in self.project.listing.pictures
                if picture.version in trouble
            ),
        )

    def _report(self, state: dict[str, Any]) -> None:
        if self._is_stopped and state["state"] == "working":
            raise RefusedError("The page was closed.")
        self._state = state
        self.on_news()


def _zip(folder: Path, file: Path, name: str) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.iterdir()):
            is_packed = path.suffix in _PACKED
            kind = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
            archive.write(path, f"{name}/{path.name}", kind)


@cache
def _has_onnx() -> bool:
    try:
        check_packages()
    except ExportError:
        return False
    return True


def _sentence(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "A picture disappeared in the meantime. Please try again."
    if isinstance(error, OSError):
        return f"Disk error: {error.strerror or error}."
    if isinstance(error, NeuralSimilarityError):
        return str(error)
    return "Something went wrong; see the terminal."

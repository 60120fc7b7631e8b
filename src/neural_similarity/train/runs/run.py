"""A run that trained a network for classification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ...data import ImageSet
from ...errors import RunError
from ..build import build_model, keep_random_numbers, training_copy, unseen_images, unseen_splits
from ..checkpoint import read_weights
from ..config import TrainConfig
from ..settings import Settings
from .run_folder import RunFolder

__all__ = ["Run"]


@dataclass(frozen=True)
class Run(RunFolder[TrainConfig]):
    """A run that trained a network for classification."""

    config_class: ClassVar[type[Settings]] = TrainConfig

    def load_model(self, which: str = "last") -> nn.Module:
        """The trained network, in evaluation mode; ``which`` is "last" or "best"."""
        file = self.weights(which)
        environment = self.environment()
        classes, channels = len(environment["classes"]), environment["in_channels"]
        with keep_random_numbers():
            model = build_model(self.config, classes, channels, environment["image_size"])
        read_weights(file, model)
        return model.eval()

    def test_set(self, split: str | None = None) -> ImageSet:
        """Images the run was not trained on, of the classes it was trained on.

        ``split`` is ``"test"``, or ``"validation"`` for held-out training images; None is the
        former if the data set has test images of the same classes. The data must be those the run
        started with: if test images are drawn from all images, changed data would give another
        draw, and the run may have been trained on some of it.
        """
        images = self._images(split)
        original = self._known_copy(images, split)
        if original is not None and images.fingerprint != original:
            raise self._other_data(images.fingerprint, original)
        return images

    def _images(self, split: str | None = None) -> ImageSet:
        images = unseen_images(self.config, split)
        if images.classes != self.classes():
            raise RunError(
                f"{self.folder}: expected images of the classes the run was trained on, got "
                f"{len(images.classes)} classes in {images.name!r}, which are different or in "
                f"another order. Check --data-dir."
            )
        return images

    def _known_copy(self, images: ImageSet, split: str | None) -> str | None:
        """The fingerprint that these images must have; None if the run has none to compare with."""
        copies: dict[str, str] = self._starts()[0]["data_copies"]
        if not {"train", "test"} <= copies.keys():
            raise RunError(
                f"{self.folder}: expected fingerprints of train and test in environment.json, got "
                f"{copies}. Restore the file from a copy, or start a new run."
            )
        during_training, *others = unseen_splits(self.config)
        if not others or split == during_training:
            return copies["test"]
        # Test images of a run that held out training images: part of those, or separate data.
        return copies["train"] if images.fingerprint == training_copy(self.config) else None

"""Pictures and projects for the tests of the page."""

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn

from neural_similarity.adapt import FeatureExtractor, Preprocessing

COLOURS = {"red": (200, 40, 40), "green": (40, 180, 60), "blue": (50, 60, 200)}


def picture(colour=(200, 40, 40), seed=0, size=(48, 40), form="PNG", **options) -> bytes:
    """The file of a picture: one colour with noise; each seed gives a different one."""
    noise = np.random.default_rng(seed).normal(0, 40, (size[1], size[0], 3))
    pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
    file = BytesIO()
    Image.fromarray(pixels).save(file, form, **options)
    return file.getvalue()


def write_pictures(folder: Path, counts: dict[str, int]) -> None:
    """A project on disk: ``counts`` pictures of each colour."""
    for label, count in counts.items():
        (folder / label).mkdir(parents=True)
        for seed in range(count):
            (folder / label / f"{seed}.png").write_bytes(picture(COLOURS[label], seed))


def files_of(project) -> list:
    """The files of all pictures of an open project."""
    return [one.file for one in project.listing.pictures]


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def toy_backbone() -> FeatureExtractor:
    """A backbone that sees the colours of four parts of a picture."""
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten())
    return FeatureExtractor(network.eval(), Preprocessing(16, (0.4,) * 3, (0.3,) * 3), "toy")

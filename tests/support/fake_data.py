"""Tiny data sets in the layouts of the real ones."""

import gzip
import pickle
import struct

import numpy as np
import torch
from PIL import Image

from neural_similarity.data import MemorySet, registry


def memory_set(count=50, channels=3, height=6, width=5, classes=4) -> MemorySet:
    """All images differ, so that batches show which images they contain."""
    generator = torch.Generator().manual_seed(1)
    shape = (count, channels, height, width)
    images = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    names = tuple(f"class {n}" for n in range(classes))
    return MemorySet.of("fake", images, torch.arange(count) % classes, names)


def write_cifar(root, files, each=3, seed=0):
    """CIFAR's batches, ``each`` images per class in every one of them."""
    folder = root / files.folder
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for name in (*files.train, *files.test):
        labels = np.repeat(np.arange(files.classes), each)
        random.shuffle(labels)
        pixels = random.integers(256, size=(len(labels), 3072), dtype=np.uint8)
        pixels[:, 0] = labels  # so that an image can be compared with its label
        batch = {"data": pixels, files.labels: labels.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    return folder


def write_cifar_names(folder, files, names):
    (folder / files.meta).write_bytes(pickle.dumps({files.names: list(names)}, protocol=2))


def idx(array, axes=None) -> bytes:
    """An array as an idx file."""
    head = bytes((0, 0, 8, axes or array.ndim))
    return head + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_fashion(folder, packed=False, count=7):
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(2)
    wrap, suffix = (gzip.compress, ".gz") if packed else (bytes, "")
    written = {}
    for part in ("train", "t10k"):
        images = random.integers(256, size=(count, 28, 28), dtype=np.uint8)
        labels = random.integers(10, size=count, dtype=np.uint8)
        (folder / f"{part}-images-idx3-ubyte{suffix}").write_bytes(wrap(idx(images)))
        (folder / f"{part}-labels-idx1-ubyte{suffix}").write_bytes(wrap(idx(labels)))
        written[part] = images, labels
    return written


def write_image(path, size=(20, 16), colour=(200, 30, 90), mode="RGB", **options):
    """A plain image, written in the format that its name implies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path, **options)


def write_photos(folder, classes=("cat", "dog"), each=5, size=(30, 24)):
    """One folder per class; all images differ, in subfolders and in several formats."""
    random = np.random.default_rng(3)
    for name in classes:
        for number in range(each):
            suffix = ("jpg", "png", "JPEG")[number % 3]
            path = folder / name / ("more" if number == 1 else ".") / f"{number}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = random.integers(256, size=(size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    return folder


def own_datasets() -> list[str]:
    """The data sets of the library, without those that other tests register."""
    loads = {name: load for name, (_, load) in registry._REGISTRY.items()}
    homes = {name: getattr(load, "func", load).__module__ for name, load in loads.items()}
    return [name for name, home in homes.items() if home.startswith("neural_similarity.")]

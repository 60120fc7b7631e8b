"""Tiny data sets as files and archives, for tests that fetch and check them."""

import gzip
import hashlib
import io
import pickle
import random
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image

from neural_similarity.data.fetching.sources import RemoteFile, Source


def md5(content):
    return "md5:" + hashlib.md5(content).hexdigest()


def cifar10_files(per_batch=20):
    """CIFAR-10's files by name, with few images."""
    draw = np.random.default_rng(3)

    def batch():
        rows = draw.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
        return pickle.dumps({"data": rows, "labels": [n % 10 for n in range(per_batch)]})

    files = {f"data_batch_{n}": batch() for n in range(1, 6)} | {"test_batch": batch()}
    names = [f"kind {n}" for n in range(10)]
    return files | {"batches.meta": pickle.dumps({"label_names": names})}


def tar_gz(files):
    """A tar.gz of files by name."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files):
    """A zip of files by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def cifar10_source(server):
    """Put a small CIFAR-10 on a server; return its source."""
    files, folder = cifar10_files(), "cifar-10-batches-py"
    archive = tar_gz({f"{folder}/{name}": content for name, content in files.items()})
    server.files["/cifar.tar.gz"] = archive
    remote = RemoteFile(
        server.url("/cifar.tar.gz"), md5(archive), folder, len(archive), archive=True
    )
    return Source((remote,), (folder, ""), {name: md5(content) for name, content in files.items()})


def omniglot_source(server):
    """Two archives in one folder, without checksums of their contents."""
    remotes = []
    for part in ("images_background", "images_evaluation"):
        image = png(28, 28)
        archive = zipped({f"{part}/Runes/character0{n}/{n}.png": image for n in (1, 2)})
        server.files[f"/{part}.zip"] = archive
        url = server.url(f"/{part}.zip")
        remotes.append(RemoteFile(url, md5(archive), f"omniglot/{part}", archive=True))
    names = {"images_background": "", "images_evaluation": ""}
    return Source(tuple(remotes), ("omniglot", "omniglot-py", ""), names)


def fashion_source(server):
    """Four files that are not unpacked."""
    files = {}
    for part, count in (("train", 30), ("t10k", 10)):
        pixels = random.Random(count).randbytes(count * 28 * 28)
        images = struct.pack(">4I", 0x803, count, 28, 28) + pixels
        labels = struct.pack(">2I", 0x801, count) + bytes(n % 10 for n in range(count))
        files[f"{part}-images-idx3-ubyte.gz"] = gzip.compress(images)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(labels)
    server.files |= {f"/{name}": content for name, content in files.items()}
    remotes = tuple(
        RemoteFile(server.url(f"/{name}"), md5(content), f"fashion-mnist/{name}", len(content))
        for name, content in files.items()
    )
    names = {name: md5(content) for name, content in files.items()}
    return Source(remotes, ("fashion-mnist", "FashionMNIST/raw", ""), names)


def png(height, width, colour=(200, 30, 30)):
    """The bytes of an image file."""
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(buffer, format="PNG")
    return buffer.getvalue()


def image_folder(root, classes=("cat", "dog"), images=10):
    """One folder and one colour per class."""
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for n in range(images):
            (root / name / f"{n}.png").write_bytes(png(20, 30, (255 * (number % 2), 20 * n, 99)))
    return root

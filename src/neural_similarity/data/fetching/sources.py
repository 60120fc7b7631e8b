"""Where every data set comes from: addresses, checksums, and where files go below ``--data-dir``.

Addresses and checksums are those that the authors publish (CIFAR's page, Fashion-MNIST's README)
and that torchvision uses too (``datasets/cifar.py``, ``mnist.py``, ``omniglot.py``), as are the
checksums of CIFAR's individual files; lengths are those that the servers report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from ..sets.fashion_mnist import DEBIAN

__all__ = ["SOURCES", "RemoteFile", "Source"]


@dataclass(frozen=True)
class RemoteFile:
    """A file to fetch.

    Args:
        url: its address.
        checksum: ``"md5:<hex>"`` or ``"sha256:<hex>"``.
        place: where it goes below the data directory: the file itself, or, for an archive, the
            folder it holds.
        size: in bytes, if known.
        archive: whether to unpack it.
    """

    url: str
    checksum: str
    place: str
    size: int | None = None
    archive: bool = False

    @property
    def name(self) -> str:
        """The last part of its address."""
        return PurePosixPath(urlsplit(self.url).path).name


@dataclass(frozen=True)
class Source:
    """How to get a data set.

    Args:
        files: what to fetch; empty if it cannot be fetched.
        folders: where its readers look, below the data directory; it is fetched to the first.
        names: the files and folders that must be in one of these, with their checksums or ``""``.
            Empty if the data set is made and not read.
    """

    files: tuple[RemoteFile, ...] = ()
    folders: tuple[str, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)


def _cifar(classes: int, folder: str, md5: str, size: int, members: dict[str, str]) -> Source:
    url = f"https://www.cs.toronto.edu/~kriz/cifar-{classes}-python.tar.gz"
    names = {name: f"md5:{checksum}" for name, checksum in members.items()}
    return Source((RemoteFile(url, f"md5:{md5}", folder, size, archive=True),), (folder, ""), names)


def _fashion(files: dict[str, tuple[str, int]]) -> Source:
    # The authors' address has no https; the checksum protects the file.
    home = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    return Source(
        tuple(
            RemoteFile(f"{home}/{name}", f"md5:{md5}", f"fashion-mnist/{name}", size)
            for name, (md5, size) in files.items()
        ),
        ("fashion-mnist", "FashionMNIST/raw", "", *map(str, DEBIAN)),
        {name: f"md5:{md5}" for name, (md5, _) in files.items()},
    )


def _omniglot(archives: dict[str, str]) -> Source:
    home = "https://github.com/brendenlake/omniglot/raw/master/python"
    return Source(
        tuple(
            RemoteFile(f"{home}/{name}.zip", f"md5:{md5}", f"omniglot/{name}", archive=True)
            for name, md5 in archives.items()
        ),
        ("omniglot", "omniglot-py", ""),
        dict.fromkeys(archives, ""),
    )


_CIFAR100 = _cifar(
    100,
    "cifar-100-python",
    "eb9058c3a382ffc7106e4002c42a8d85",
    169_001_437,
    {
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    },
)

SOURCES = {
    "digits": Source(),
    "glyphs": Source(),
    "cifar10": _cifar(
        10,
        "cifar-10-batches-py",
        "c58f30108f718f92721af3b95e74349a",
        170_498_071,
        {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
            "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        },
    ),
    "cifar100": _CIFAR100,
    "cifar-fs": _CIFAR100,
    "fc100": _CIFAR100,
    "fashion-mnist": _fashion(
        {
            "train-images-idx3-ubyte.gz": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            "train-labels-idx1-ubyte.gz": ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            "t10k-images-idx3-ubyte.gz": ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            "t10k-labels-idx1-ubyte.gz": ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        }
    ),
    "omniglot": _omniglot(
        {
            "images_background": "68d2efa1b9178cc56df9314c21c6e718",
            "images_evaluation": "6b91aef0f799c5bb55b94e3f2daec811",
        }
    ),
    "mini-imagenet": Source(
        folders=("mini-imagenet", ""),
        names=dict.fromkeys(("images", "train.csv", "val.csv", "test.csv"), ""),
    ),
    "imagenet": Source(folders=("imagenet", ""), names={"train": "", "val": ""}),
    "imagefolder": Source(folders=("",), names={"train": ""}),
}
"""By name; a test or a mirror may put in another :class:`Source`."""

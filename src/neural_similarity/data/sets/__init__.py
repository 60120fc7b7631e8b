"""The data sets, one per file; importing this package registers all of them."""

from . import cifar, digits, fashion_mnist, glyphs, imagefolder, imagenet, mini_imagenet, omniglot

__all__ = [
    "cifar",
    "digits",
    "fashion_mnist",
    "glyphs",
    "imagefolder",
    "imagenet",
    "mini_imagenet",
    "omniglot",
]

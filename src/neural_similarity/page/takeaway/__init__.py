"""The download: the folder of ``nsl adapt`` as a zip, with a page that runs the model."""

from .packing import Packing

__all__ = ["Packing"]

"""The project on disk: classes, pictures, the bin, and the page's records."""

from .bin import Entry
from .listing import Listing, Picture
from .opening import open_project
from .store import PRIVATE, Project

__all__ = ["PRIVATE", "Entry", "Listing", "Picture", "Project", "open_project"]

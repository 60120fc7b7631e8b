"""The project on disk: classes, pictures, the bin, and what the page remembers."""

from .bin import Entry
from .listing import Listing, Picture
from .opening import open_project
from .store import PRIVATE, Project

__all__ = ["PRIVATE", "Entry", "Listing", "Picture", "Project", "open_project"]

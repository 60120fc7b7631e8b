"""The project on disk: classes, pictures, the bin, and what the page remembers."""

from .bin import Entry
from .listing import Listing, Picture
from .store import PRIVATE, Project, open_project

__all__ = ["PRIVATE", "Entry", "Listing", "Picture", "Project", "open_project"]

"""The page of ``nsl teach``: classes as columns, drop pictures, see it learn, take the model away.

The main names:

- :func:`open_project`: a :class:`Project`, a plain folder with a folder per class that the page
  changes and ``nsl adapt`` reads. A :class:`RefusedError` says in a sentence why something
  cannot be done.
"""

from .project import Project, open_project
from .refused import RefusedError

__all__ = ["Project", "RefusedError", "open_project"]

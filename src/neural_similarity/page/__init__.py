"""The page of ``nsl teach``: classes as columns, drop pictures, see it learn, take the model away.

The main names:

- :func:`open_project`: a :class:`Project`, a plain folder with a folder per class that the page
  changes and ``nsl adapt`` reads. A :class:`RefusedError` explains in a sentence why something
  cannot be done.
- :class:`Engine`: a thread that computes features as pictures arrive and trains on the newest
  ones; the result is a :class:`Lesson`.
- ``page.server.serve`` and ``page.server.create_app``: the page itself, which need the extra
  ``page``.
"""

from .engine import Engine, Lesson
from .project import Project, open_project
from .refused import RefusedError

__all__ = ["Engine", "Lesson", "Project", "RefusedError", "open_project"]

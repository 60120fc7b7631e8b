"""``python -m neural_similarity`` is ``nsl``, and what ``torchrun -m`` needs.

Python puts the current folder first on the path, where any file named like a module would be run
instead. That folder may be full of somebody else's files, so it is removed before anything else is
imported.
"""

import os
import sys

try:
    # pathlib would be imported from there.
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109
        del sys.path[0]
except OSError:  # the folder was deleted: then Python has not added it
    pass

from .cli import main

main()

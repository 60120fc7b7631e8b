"""Runs the compiled operation of whatever version of the library is on the path, on request.

A line ``KIND/DIRECTION/NUMBER OF THE SHAPE`` prepares; an empty line runs once. Both are answered
by a line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch

from neural_similarity.ops import similarity_conv2d
from neural_similarity.ops.similarity_conv import compiled

from .operands import SHAPES, make, step


def main(threads: int) -> None:
    torch.set_num_threads(threads)
    if compiled.load() is None:
        sys.exit("versions: expected a compiler, got none: there is no compiled operation to race")
    run: Callable[[], object] | None = None
    for line in sys.stdin:
        if request := line.strip():
            run = None  # its memory is free for the next one
            kind, direction, number = request.split("/")
            tensors = make(SHAPES[int(number)], kind)
            run = step(direction, lambda x, w, m: similarity_conv2d(x, w, m, padding=1), tensors)
        elif run is not None:
            run()
        print("done", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""``python -m neural_similarity`` is ``nsl``, and what ``torchrun -m`` needs."""

from .cli import main

main()

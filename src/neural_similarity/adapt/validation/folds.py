"""The division of images into folds: stratified by class, with groups of images kept together."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["NEVER", "fold_numbers"]

NEVER = -1
"""The fold number of images that are always trained on and never tested."""


def fold_numbers(labels: Tensor, folds: int, seed: int, groups: Tensor | None = None) -> Tensor:
    """The fold ``(N,)`` in which each image is tested; −1 for images that cannot be tested.

    The images of a class go to different folds as far as possible, and folds have similar sizes.
    Images of one group go to one fold. If all images of a class are in one group, the group is not
    tested: nothing would be left to learn the class from. There are no more folds than groups in
    the class with the most groups.

    Args:
        labels: ``(N,)``.
        folds: the largest number of folds.
        seed: seed of the division.
        groups: ``(N,)``, the same number for images that stay together, as
            :func:`~neural_similarity.adapt.near_duplicates` returns it. By default every image is
            its own group.

    >>> fold_numbers(torch.tensor([0, 0, 1, 1, 2]), 5, seed=0).sort().values.tolist()
    [-1, 0, 0, 1, 1]
    >>> parts = fold_numbers(torch.zeros(4, dtype=int), 5, 0, groups=torch.tensor([0, 0, 1, 2]))
    >>> bool(parts[0] == parts[1]), len(parts.unique())
    (True, 3)
    """
    groups = torch.arange(len(labels)) if groups is None else groups
    members = {group: (groups == group).nonzero()[:, 0] for group in groups.unique().tolist()}
    by_class: dict[int, list[Tensor]] = {}
    for rows in members.values():
        by_class.setdefault(int(labels[rows].mode().values), []).append(rows)
    count = min(folds, max(map(len, by_class.values())))
    parts = torch.full_like(labels, NEVER)
    if count < 2:
        return parts
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.zeros(count, dtype=torch.int64)
    for way in sorted(by_class):
        units = by_class[way]
        order = torch.randperm(len(units), generator=generator).tolist()
        if len(units) > 1:
            of_class = torch.zeros_like(sizes)
            # Large groups first: small ones can still even out the sizes.
            for unit in sorted(order, key=lambda unit: -len(units[unit])):
                fullest = len(labels) + 1
                fold = int((of_class * fullest + sizes).argmin())
                parts[units[unit]] = fold
                of_class[fold] += len(units[unit])
                sizes[fold] += len(units[unit])
    return _without_lone_classes(parts, labels, groups)


def _without_lone_classes(parts: Tensor, labels: Tensor, groups: Tensor) -> Tensor:
    """Exclude classes whose images are all in one fold from the tests, with all their groups.

    That happens if a group has images from several classes.
    """
    for way in labels.unique():
        rows = labels == way
        if len(parts[rows].unique()) == 1:
            parts[torch.isin(groups, groups[rows])] = NEVER
    numbers = parts[parts != NEVER].unique()  # a fold may have become empty
    if len(numbers) < 2:
        return parts.fill_(NEVER)
    return torch.where(parts == NEVER, NEVER, torch.searchsorted(numbers, parts))

r"""The accuracy of the chosen classifier on new images, from the tests of all methods.

The quantity to estimate is the accuracy of the final classifier: the chosen method, trained on all
images. The tests differ from it in two ways.

**The choice.** The chosen method (:func:`choose_method`) is best partly by chance, so its own
accuracy is too high. The bootstrap of Tsamardinos, Greasidou and Borboudakis (2018),
"Bootstrapping the out-of-sample predictions for efficient and accurate cross-validation",
https://doi.org/10.1007/s10994-018-5714-4, repeats the choice: images are drawn with replacement,
the method chosen on these is tested on the others, and the results are averaged.

**Fewer images.** A tested classifier is trained on fewer images than the final one, which costs
several points if classes have five images. So the chosen method is also tested after training
without two folds, and the accuracy is extrapolated to all images: with m images,

.. math:: a(m) = a_\infty - b\, m^{-1/2}.

The difference between the two tests also contains some of the luck of the choice, about half, which
is subtracted. The rate, that half and :data:`SPREAD` were chosen on simulated folders other than
those below; a rate of 1 would do nearly as well.

**The interval** is Wilson's with an effective number of images: the number of groups of
near-identical images, divided by the variance of an image's extrapolated value relative to a single
test, and by :data:`SPREAD`, for the luck of the training images, which all folds share.

Measured by ``python -m experiments.trust`` on 600 simulated folders (10 classes of 5, 10 or 20
images), with one, three and six methods to choose from and a weak one as the default: the mean bias
is +0.1, −0.3 and +0.2 points, with a standard error of 0.3, and 96.7, 93.3 and 94.8 % of the
intervals contain the true accuracy. With five images per class, the bias is −0.4, −0.9 and +0.1,
with a standard error of 0.7; there, the highest of six accuracies is 2.4 points too high.
"""

from __future__ import annotations

from math import sqrt

import torch
from torch import Tensor

__all__ = [
    "SPREAD", "choice_accuracy", "choose_method", "estimate_accuracy", "extrapolation", "wilson",
]  # fmt: skip

SPREAD = 1.3
"""How much larger the variance of the estimate is than that of the tests alone."""
_DRAWS = 1000
_DOUBT = 2.0  # standard errors by which a method must beat the default
_RATE = 0.5
_LUCK = 0.5  # share of the luck of the choice in the difference between two sizes
_NORMAL = 1.96


def estimate_accuracy(
    correct: Tensor,
    chosen: int,
    groups: Tensor,
    fewer: Tensor | None = None,
    factor: float = 0.0,
) -> tuple[float, tuple[float, float]]:
    """The accuracy of the chosen method on new images, and its 95 % interval.

    Args:
        correct: ``(methods, n)``, 1 where a method was right in its test, else 0.
        chosen: the index of the chosen method, by :func:`choose_method`.
        groups: ``(n,)``, the same number for near-identical images.
        fewer: ``(n,)``, how often the chosen method was right after training on fewer images.
        factor: for the difference to ``fewer``, by :func:`extrapolation`.

    >>> correct = torch.tensor([[1.0] * 90 + [0.0] * 10])
    >>> accuracy, (low, high) = estimate_accuracy(correct, 0, torch.arange(100))
    >>> f"{accuracy:.2f}, {low:.2f} – {high:.2f}"
    '0.90, 0.81 – 0.95'
    """
    correct, tests = correct.double(), correct[chosen].double()
    accuracy = choice_accuracy(correct, groups)
    luck = tests.mean().item() - accuracy
    values = tests
    if fewer is not None:
        gains = tests - fewer.double()
        accuracy += factor * (gains.mean().item() - _LUCK * luck)
        values = tests + factor * gains
    accuracy = min(max(accuracy, 0.0), 1.0)
    sizes = torch.bincount(groups).double()
    images, count = len(tests), (sizes.sum() ** 2 / sizes.square().sum()).item()
    # One image more or less keeps the ratio of variances finite if all are correct.
    ratio = (values.var(correction=0).item() + 1 / images) / (
        accuracy * (1 - accuracy) + 1 / images
    )
    return accuracy, wilson(accuracy, count / (SPREAD * max(1.0, ratio)))


def choose_method(correct: Tensor, groups: Tensor) -> int:
    r"""The index of the chosen method: the first one, unless another is clearly better.

    Clearly: by more than two standard errors of the difference. With :math:`d_g` the number of
    correct answers in group g beyond the first method's, that is

    .. math:: \sum_g d_g > 2 \sqrt{\sum_g d_g^2}.

    Args:
        correct: ``(methods, n)``, 1 where a method was right in its test, else 0.
        groups: ``(n,)``, the same number for near-identical images.

    >>> first, second = torch.zeros(9), torch.zeros(9)
    >>> second[:5] = 1
    >>> choose_method(torch.stack([first, second]), torch.arange(9))
    1
    >>> second[4] = 0
    >>> choose_method(torch.stack([first, second]), torch.arange(9))
    0
    """
    rights, _ = _by_group(correct, groups)
    return int(_choices(rights, rights.new_ones(1, rights.shape[1])))


def choice_accuracy(correct: Tensor, groups: Tensor) -> float:
    """The accuracy of the chosen one of several methods, without the luck of the choice.

    Groups of images are drawn with replacement. The method chosen on these is tested on the groups
    that were not drawn; the mean over all draws is returned. For a single method, this is the mean
    of ``correct``.

    Args:
        correct: ``(methods, n)``, 1 where a method was right, else 0.
        groups: ``(n,)``, the same number for near-identical images.
    """
    rights, sizes = _by_group(correct, groups)
    count = len(sizes)
    if len(correct) == 1 or count < 2:
        return correct[choose_method(correct, groups)].double().mean().item()
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(count, (_DRAWS, count), generator=generator)
    times = torch.zeros(_DRAWS, count, dtype=rights.dtype)
    times.scatter_add_(1, drawn, torch.ones_like(times))
    times = times[(times == 0).any(1)]
    left = (times == 0).to(rights)
    return ((left * rights[_choices(rights, times)]).sum(1) / (left @ sizes)).mean().item()


def _by_group(correct: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The correct answers ``(methods, G)`` in each group, and the sizes ``(G,)`` of the groups."""
    numbers = groups.unique(return_inverse=True)[1]
    sizes = torch.bincount(numbers).double()
    rights = sizes.new_zeros(len(correct), len(sizes)).index_add_(1, numbers, correct.double())
    return rights, sizes


def _choices(rights: Tensor, times: Tensor) -> Tensor:
    """The chosen methods ``(T,)`` if group g occurs ``times[:, g]`` times."""
    more = rights - rights[0]
    gains, best = (times @ more.mT).max(1)
    variances = (times @ more.square().mT).gather(1, best[:, None])[:, 0]
    return torch.where(gains > _DOUBT * variances.sqrt(), best, 0)


def extrapolation(fewer: float, images: float, total: float) -> float:
    """The factor of ``accuracy(images) − accuracy(fewer)`` that extrapolates to ``total`` images.

    >>> round(extrapolation(60, 80, 100), 3)
    0.682
    """
    small, large, everything = (float(size**-_RATE) for size in (fewer, images, total))
    return (large - everything) / (small - large)


def wilson(share: float, count: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``count`` images; the count need not be an integer."""
    z = _NORMAL
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return max(0.0, middle - half), min(1.0, middle + half)

"""Damaged and hostile input: a sample in every run, all of it on demand, with a count at the end.

The convention for every file here:

- A test takes the argument ``amount``: ``"sample"``, or ``"all"`` if the environment has
  ``NSL_ATTACKS=all``. Then the test has the marker ``attack``:
  ``NSL_ATTACKS=all pytest tests/attacks -m attack`` runs everything.
- It goes over its cases with the fixture ``chosen``: ``for case in chosen(cases, sample=20)`` are
  all cases, or 20 of them, the same ones every time. Each is counted.
- What is not chosen from a list is counted by the fixture ``count_case``, called once per case.
- Cases that several tests can use are made in modules next to the tests, such as ``files.py``.

At the end the number of cases is printed, also if several processes ran them.
"""

import os
import random

import pytest

_AMOUNT = os.environ.get("NSL_ATTACKS", "sample")
_COUNT = pytest.StashKey[list[int]]()
_KEY = "attack_cases"


def pytest_configure(config):
    if _AMOUNT not in ("sample", "all"):
        raise pytest.UsageError(f"NSL_ATTACKS: expected sample or all, got {_AMOUNT!r}.")


def pytest_generate_tests(metafunc):
    if "amount" in metafunc.fixturenames:
        marks = [pytest.mark.attack] if _AMOUNT == "all" else []
        metafunc.parametrize("amount", [pytest.param(_AMOUNT, marks=marks)])


@pytest.fixture
def count_case(request):
    """A function that counts one case, or several."""
    counts = request.config.stash.setdefault(_COUNT, [])
    return lambda cases=1: counts.append(cases)


@pytest.fixture
def chosen(amount, count_case):
    """A function that yields all cases, or a sample of them, and counts them."""

    def choose(cases, sample):
        cases = list(cases)
        if amount == "sample" and len(cases) > sample:
            cases = random.Random(0).sample(cases, sample)
        for case in cases:
            count_case()
            yield case

    return choose


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):  # in a process of xdist
        session.config.workeroutput[_KEY] = sum(session.config.stash.get(_COUNT, []))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    counts = node.config.stash.setdefault(_COUNT, [])
    counts.append(getattr(node, "workeroutput", {}).get(_KEY, 0))


def pytest_terminal_summary(terminalreporter, config):
    count = sum(config.stash.get(_COUNT, []))
    if count:
        terminalreporter.write_line(f"attacks: {count:,} cases ({_AMOUNT})")

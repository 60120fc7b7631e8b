"""The examples in the docstrings of the experiments run."""

import doctest
import importlib
import pkgutil

import experiments


def test_examples_in_docstrings():
    names = [
        module.name
        for module in pkgutil.walk_packages(experiments.__path__, "experiments.")
        if not module.name.endswith("__main__")
    ]
    results = [doctest.testmod(importlib.import_module(name)) for name in names]
    assert sum(result.failed for result in results) == 0
    assert sum(result.attempted for result in results) >= 3

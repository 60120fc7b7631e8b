"""Attacks: a sample in every run of the tests, all of them if NSL_ATTACKS is "all"."""

import pytest

_COUNT = {"cases": 0}


def pytest_configure(config):
    config.addinivalue_line("markers", "attack: one of the many that NSL_ATTACKS=all takes")


@pytest.fixture
def count_case():
    """Called once for every case that was tried."""

    def count(number: int = 1) -> None:
        _COUNT["cases"] += number

    return count


def pytest_terminal_summary(terminalreporter):
    if _COUNT["cases"]:
        terminalreporter.write_line(f"attacks: {_COUNT['cases']:,} cases")

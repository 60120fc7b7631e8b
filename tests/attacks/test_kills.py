"""Commands killed at any moment: nothing is lost, and the same command finishes the work."""

import os
import random
from pathlib import Path

import pytest
from attacks import kills, swaps
from support.forks import Stop
from support.web_server import web_server

from neural_similarity import _io

FULL = os.environ.get("NSL_ATTACKS") == "all"
KILLS = 100 if FULL else 8
REPLACEMENTS = 150 if FULL else 15
NAMES = tuple(kills.COMMANDS) if FULL else kills.QUICK


@pytest.fixture(scope="module")
def bench(forks, tmp_path_factory):
    with web_server({}) as server:
        yield Bench(forks, kills.setup(server), tmp_path_factory.mktemp("kills"))


class Bench:
    """The commands as they are without a kill, each carried out when it is first needed."""

    def __init__(self, forks, setup, folder):
        self.forks, self.setup, self.folder = forks, setup, folder
        self.inputs = folder / "inputs"
        self.inputs.mkdir()
        kills.write_inputs(self.inputs)
        self._steps = {}

    def run(self, words, case, stop=None):
        call = self.forks.call if ":" in words[0] else self.forks.nsl
        return call(*words, cwd=case, stop=stop or Stop(), setup=self.setup)

    def result(self, name):
        """What a command writes if nobody kills it."""
        return self.whole(name)[0]

    def steps(self, name):
        return self.whole(name)[1]

    def whole(self, name):
        if name not in self._steps:
            command = kills.COMMANDS.get(name) or kills.Command(
                (*kills.COMMANDS["train"].words, "--similarity", "static")
            )
            case = self.folder / f"whole-{name}"
            kills.prepare(case, self.inputs, command, self.result)
            ended = self.run(command.words, case)
            assert ended.code == 0, ended.err
            self._steps[name] = case / command.out, ended.steps
        return self._steps[name]


def case_marks(number, sample):
    return pytest.param(number, marks=[pytest.mark.attack] if number >= sample else [])


@pytest.mark.parametrize("number", [case_marks(n, 8) for n in range(KILLS)])
def test_killed_at_a_random_moment(number, bench, tmp_path, count_case):
    draw = random.Random(number)
    name = NAMES[number % len(NAMES)]
    command, case = kills.COMMANDS[name], tmp_path / "case"
    whole = kills.content(bench.result(name))
    kills.prepare(case, bench.inputs, command, bench.result)
    users = {path.name for path in case.iterdir()} - {command.out}
    mine = {path: kills.content(case / path) for path in users}
    old = kills.content(case / command.out) if command.old else None
    for _ in range(draw.choice([1, 1, 2])):
        stop = kills.draw_stop(draw, bench.steps(name))
        ended = finished(bench, command.words, case, stop)
        # Training ends with 130 at SIGTERM too; a signal at the very end comes too late.
        assert ended.code in (-stop.signal, 128 + stop.signal, 130, 0), (stop, ended)
        assert "Traceback" not in ended.err, (stop, ended)
        assert {path: kills.content(case / path) for path in users} == mine, stop
        if command.replaces:
            assert tidied(kills.content(case / command.out)) in (old, whole), (name, stop)
        count_case()
    again = finished(bench, command.words, case)
    assert again.code == 0, (name, stop, again)
    assert "Traceback" not in again.err
    assert kills.content(case / command.out) == whole, (name, stop)
    assert kills.leftovers(case) == [], (name, stop)
    assert {path: kills.content(case / path) for path in users} == mine


@pytest.mark.parametrize("number", [case_marks(n, 15) for n in range(REPLACEMENTS)])
def test_interrupted_replacements(number, bench, forks, tmp_path, count_case):
    draw = random.Random(number)
    kind = list(swaps.KINDS)[number % len(swaps.KINDS)]
    way, sent = draw.choice(swaps.WAYS), draw.choice(swaps.SIGNALS)
    out, new = tmp_path / "out", tmp_path / "new"
    adapted = bench.result("adapt")

    def replace(folder, at=0):
        words = (kind, way, draw.random() < 0.5, new, folder / "out")
        stop = Stop("line", at, sent)
        return forks.call("attacks.swaps:replace", *words, cwd=tmp_path, stop=stop)

    swaps.write_new(kind, new, adapted)
    (tmp_path / "whole").mkdir()
    for folder in (tmp_path, tmp_path / "whole"):
        swaps.write_old(kind, folder / "out", adapted)
    old = kills.content(out)
    steps = replace(tmp_path / "whole").steps["line"]
    whole = kills.content(tmp_path / "whole" / "out")
    assert old != whole
    ended = replace(tmp_path, draw.randint(1, int(steps)))
    assert ended.code in (-sent, 128 + sent)
    assert "Traceback" not in ended.err
    in_one_step = kind == "file" or (way == "exchange" and kind != "run")
    if not in_one_step:
        _io.settle(out)  # as the next command does; a swap in one step needs none
    assert tidied(kills.content(out)) in (old, whole), ended
    assert replace(tmp_path).code == 0
    assert kills.content(out) == whole
    assert kills.leftovers(tmp_path) == []
    count_case()


def finished(bench, words, case, stop=None):
    """The same command again, with ``--resume`` or ``--force`` if it says so."""
    ended = bench.run(words, case, stop)
    option = refusal(ended)
    if option is None:
        return ended
    kept = [word for word in words if word != "--force"]  # not both
    return bench.run((*kept, option), case, stop)


def refusal(ended):
    """The option with which a command that was refused says that it works."""
    if ended.code != 2:
        return None
    assert len(ended.err.strip().splitlines()) == 1, ended.err
    return next((option for option in ("--resume", "--force") if option in ended.err), None)


def tidied(content):
    """Without what is being written beside it."""
    return {
        name: digest
        for name, digest in content.items()
        if not any(part.startswith(".nsl-") for part in Path(name).parts)
        and not name.endswith(".part")
    }

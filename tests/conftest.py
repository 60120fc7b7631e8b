import os
from collections.abc import Iterator

# The tests run side by side, one process a core: threads of their own would only get in the way.
# NumPy and SciPy read these when they are imported, and so do the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

import pytest
import torch
from support.forks import Forks

from neural_similarity.ops.similarity_conv import dispatch, pieces

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_start_every_time(monkeypatch):
    torch.manual_seed(0)
    # The command sets it for its child processes; a test that calls it leaves it behind.
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)


@pytest.fixture(params=dispatch.PATHS, ids=lambda path: path.name)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every path of the operation in turn, as if there were no other."""
    chosen = request.param
    if chosen.load(torch.zeros(1)) is None:
        pytest.skip(f"no {chosen.name} path on this machine")
    monkeypatch.setattr(pieces, "_CPU_PANEL", 60_000)  # several pieces, some of rows
    with dispatch.only(chosen.name):
        yield chosen.name


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """A process that has torch and the commands imported, and forks a child for each call."""
    with Forks(tmp_path_factory.mktemp("forks")) as running:
        yield running


@pytest.fixture
def drawn(monkeypatch):
    """The figures that matplotlib has saved."""
    from matplotlib.figure import Figure

    figures, savefig = [], Figure.savefig

    def remember(self, *args, **kwargs):
        figures.append(self)
        return savefig(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", remember)
    return figures

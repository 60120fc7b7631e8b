import pytest
import torch

from neural_similarity.ops.similarity_conv import compiled, panels, registered

# The tests run side by side, one process a core: threads of their own would only get in the way.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture(params=["compiled", "pure"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either path, chosen behind the operator's back."""
    if request.param == "compiled" and compiled.load() is None:
        pytest.skip("no compiler")
    if request.param == "pure":
        monkeypatch.setattr(registered, "_choose", lambda input: panels)
        monkeypatch.setattr(panels, "_CPU_PANEL", 60_000)  # several pieces, some of rows
    return str(request.param)


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

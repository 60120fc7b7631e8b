"""Dynamic similarity beyond images: one small sequence task for each kind of layer.

A layer with a predicted similarity multiplies its input by a function of its input. So a single one
can compute products, and a single plain layer cannot. Each task needs a product:

- ``Conv1d``: of the two neighbours, at every position;
- ``Linear``: of two features, at every step;
- ``LSTMCell``: of the two marked values, at the end of the sequence. Its gates multiply anyway, so
  here both versions are expected to succeed.

The plain layer and its dynamic version are trained in the same way. The score is R² on new
sequences (1 is perfect, 0 is predicting the mean).

Run: ``python examples/sequences.py`` (about a minute).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import neural_similarity as ns

LENGTH, BATCH, STEPS = 6, 128, 500


def main() -> None:
    torch.set_num_threads(1)  # the layers are too small for threads to help
    predictor = ns.SpherePredictor(hidden=32, batch_norm=False)
    print(f"{'task':<44}{'layer':<18}{'parameters':>10}{'R²':>8}")
    for task, make_data, plain, dynamic in (
        (
            "product of both neighbours",
            neighbours,
            lambda: nn.Conv1d(1, 1, 3, padding=1),
            lambda: ns.nn.DynamicConv1d(1, 1, 3, padding=1, predictor=predictor),
        ),
        (
            "product of two features at every step",
            features,
            lambda: nn.Linear(4, 1),
            lambda: ns.nn.DynamicLinear(4, 1, predictor=predictor),
        ),
        (
            "product of two marked values of a sequence",
            marked,
            lambda: Reader(nn.LSTMCell(2, 16)),
            lambda: Reader(ns.nn.DynamicLSTMCell(2, 16, predictor=predictor)),
        ),
    ):
        for name, make in (("plain", plain), ("dynamic", dynamic)):
            torch.manual_seed(0)
            model = make()
            score = train_and_score(model, make_data)
            layer = model.cell if isinstance(model, Reader) else model
            parameters = sum(p.numel() for p in model.parameters())
            title = task if name == "plain" else ""
            print(f"{title:<44}{type(layer).__name__:<18}{parameters:>10,}{score:>8.3f}")


def neighbours() -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, 1, LENGTH)
    around = F.pad(x, (1, 1))
    return x, around[..., :-2] * around[..., 2:]


def features() -> tuple[Tensor, Tensor]:
    x = torch.randn(BATCH, LENGTH, 4)
    return x, (x[..., 1] * x[..., 2])[..., None]


def marked() -> tuple[Tensor, Tensor]:
    values = torch.rand(BATCH, LENGTH) * 2 - 1
    places = torch.stack([torch.randperm(LENGTH)[:2] for _ in range(BATCH)])
    marks = torch.zeros(BATCH, LENGTH).scatter(1, places, 1)
    return torch.stack([values, marks], -1), values.gather(1, places).prod(1, keepdim=True)


class Reader(nn.Module):
    """Reads a sequence with a cell and computes the output from its last state."""

    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell
        self.answer = nn.Linear(cell.hidden_size, 1)

    def forward(self, sequence: Tensor) -> Tensor:
        state = None
        for step in sequence.unbind(1):
            state = self.cell(step, state)
        return self.answer(state[0])


def train_and_score(model: nn.Module, make_data: Callable[[], tuple[Tensor, Tensor]]) -> float:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        input, target = make_data()
        loss = F.mse_loss(model(input), target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        pairs = [(model(input), target) for input, target in (make_data() for _ in range(10))]
    predicted, target = (torch.cat(side) for side in zip(*pairs, strict=True))
    return 1 - (F.mse_loss(predicted, target) / target.var()).item()


if __name__ == "__main__":
    main()

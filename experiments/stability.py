"""Does a dynamic network train stably? Nine layers, SGD at learning rate 0.1, many seeds.

The paper (Section 3.3, Table 1) says that a plain CNN as predictor does not converge unless its
output is normalised or passed through a sigmoid, and that a SphereNet predictor does. Here each
predictor trains the paper's CNN-9 on scikit-learn's digits, at the paper's learning rate, from
several seeds. A run ends diverged (its loss is not finite) or with a test accuracy.

Run: ``python -m experiments.stability`` prints a table. ``--out`` writes one JSON file per run;
runs whose file exists are not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

import neural_similarity as ns

from .code_version import commit
from .records import Record, read_record, write_text

# The CNN predictors have the authors' initialisation, which does not start at the identity, and no
# BatchNorm, which would be another kind of normalisation. At the authors' tiny scale they still
# start near the identity, so both kinds also run at He's scale, without BatchNorm.
PREDICTORS: dict[str, ns.SpherePredictor | ns.ConvPredictor | None] = {
    "no similarity": None,
    "SphereNet": ns.SpherePredictor(),
    "SphereNet, authors' start": ns.SpherePredictor(start="authors"),
    "full SphereNet": ns.SpherePredictor(normalize="both"),
    "CNN": ns.ConvPredictor(output="none", start="authors"),
    "CNN, He's scale": ns.ConvPredictor(
        output="none", start="authors", first_scale=1.0, last_scale=1.0
    ),
    "SphereNet, He's scale": ns.SpherePredictor(
        batch_norm=False, start="authors", first_scale=1.0, last_scale=1.0
    ),
    "CNN, normalized output": ns.ConvPredictor(output="normalized", start="authors"),
    "CNN, sigmoid output": ns.ConvPredictor(output="sigmoid", start="authors"),
}
BATCH, LEARNING_RATE = 128, 0.1


def main() -> None:
    arguments = parse()
    rows: dict[str, list[Record]] = {name: [] for name in PREDICTORS}
    for seed in range(arguments.seeds):
        for name in PREDICTORS:
            result = run_or_read(name, seed, arguments.steps, arguments.out)
            rows[name].append(result)
            print(f"seed {seed}, {name}: {describe(result)}", flush=True)
    print("\n" + table(rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.stability", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds (default 10)")
    parser.add_argument("--steps", type=int, default=100, help="training steps (default 100)")
    parser.add_argument("--out", type=Path, help="folder for one JSON file per run")
    return parser.parse_args()


def run_or_read(name: str, seed: int, steps: int, folder: Path | None) -> Record:
    slug = "".join(c if c.isalnum() else "-" for c in name.lower())
    path = None if folder is None else folder / f"stability-{slug}-{steps}-{seed}.json"
    if path is not None and (record := read_record(path)) is not None:
        return record
    result = {
        "experiment": "stability",
        "predictor": name,
        "seed": seed,
        "steps": steps,
        "learning_rate": LEARNING_RATE,
        "batch": BATCH,
        "data": "scikit-learn digits",
        "commit": commit(),
        "torch": torch.__version__,
        **train(name, seed, steps),
    }
    if path is not None:
        write_text(path, json.dumps(result) + "\n")
    return result


def train(name: str, seed: int, steps: int) -> Record:
    """Loss over time, whether it diverged, and the accuracy at the end."""
    (train_x, train_y), (test_x, test_y) = digits()
    torch.manual_seed(seed)
    model = ns.create_model("cnn9", in_channels=1, image_size=8)
    predictor = PREDICTORS[name]
    if predictor is not None:
        ns.attach(model, ns.DynamicSimilarity("diagonal", predictor))
    optimiser = torch.optim.SGD(
        model.parameters(), lr=LEARNING_RATE, momentum=0.9, weight_decay=5e-4
    )
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(train_x), (BATCH,))
        loss = F.cross_entropy(model(train_x[batch]), train_y[batch])
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            return {"diverged_at": len(losses), "losses": losses[:-1], "accuracy": None}
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        correct = (model.eval()(test_x).argmax(1) == test_y).float().mean().item()
    return {"diverged_at": None, "losses": losses, "accuracy": correct}


def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 16
    labels = torch.from_numpy(data.target)
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels, test_size=0.3, random_state=0, stratify=labels
    )
    return (train_x, train_y), (test_x, test_y)


def describe(result: Record) -> str:
    if result["diverged_at"] is not None:
        return f"diverged at step {result['diverged_at']}"
    return f"{result['accuracy']:.1%}, last loss {result['losses'][-1]:.3f}"


def table(rows: dict[str, list[Record]]) -> str:
    """A Markdown table of the runs."""
    lines = [
        "| predictor | runs | diverged | below 50 % | accuracy: mean | worst | best |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, results in rows.items():
        scores = [r["accuracy"] for r in results if r["accuracy"] is not None]
        low = sum(score < 0.5 for score in scores)
        ends = (sum(scores) / len(scores), min(scores), max(scores)) if scores else ()
        cells = " | ".join(f"{x:.1%}" for x in ends) if ends else "– | – | –"
        lines.append(
            f"| {name} | {len(results)} | {len(results) - len(scores)} | {low} | {cells} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()

"""Does a network fail because of its weights, or because of the statistics of its BatchNorm?

``python -m experiments.norm_statistics RUN NAME`` tests the network of a run twice: with the
statistics that BatchNorm averaged in training, and with those of the training images, in whole
batches and without augmentation, under the final weights. The result is
``results/norm-statistics/NAME.json``.

The authors' recipe (``nsl train --recipe authors``) averages over a thousand steps and begins at
zero, so after a short training its statistics are far from those of the final weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torch import nn
from torch.optim.swa_utils import update_bn

from neural_similarity.data import (
    dataset_info,
    eval_loader,
    load_dataset,
    no_augment,
    train_loader,
)
from neural_similarity.errors import NeuralSimilarityError, RunError
from neural_similarity.train import Evaluation, Run, evaluate

from . import markdown
from .code_version import commit
from .intervals import over_images
from .queue.run_record import run_record
from .records import RESULTS, Record, read_record, write_record

__all__ = ["compare", "main", "stored_results", "table"]

FOLDER = "norm-statistics"


def compare(run: Run) -> Record:
    """Errors of a trained network by the statistics of its BatchNorm."""
    config = run.config
    if config.validation or dataset_info(config.data).kind != "classification":
        raise RunError(
            f"{run.folder}: expected a run that was trained on all training images, got one that "
            f"held out some of them. Statistics must not come from images that are tested."
        )
    mean, std = run.normalisation()
    test = eval_loader(run.test_set(), config.batch_size, mean=mean, std=std)
    images = load_dataset(
        config.data, "train", config.data_dir, image_size=config.image_size, strict=config.strict
    )
    training = train_loader(
        images, config.batch_size, augment=no_augment, mean=mean, std=std, seed=config.seed
    )
    model = run.load_model()
    if not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise RunError(f"{run.folder}: expected a network with BatchNorm, got one without.")
    averaged = evaluate(model, test)
    update_bn(training.epoch(0), model)
    return {"averaged": _record(averaged), "of_final_weights": _record(evaluate(model, test))}


def _record(evaluation: Evaluation) -> Record:
    return {"errors": evaluation.errors, "images": evaluation.images, "loss": evaluation.loss}


def stored_results(results: Path) -> dict[str, Record]:
    """All results, by name."""
    files = sorted((results / FOLDER).glob("*.json"))
    return {file.stem: record for file in files if (record := read_record(file))}


def table(records: dict[str, Record]) -> str:
    """A Markdown table of the results."""
    head = ["network", "averaged in training", "of the final weights"]
    ways = ("averaged", "of_final_weights")
    return markdown.table(
        head, [[f"`{name}`", *(_error(of[way]) for way in ways)] for name, of in records.items()]
    )


def _error(record: Record) -> str:
    error = over_images(record["errors"] / record["images"], record["images"]).times(100)
    return f"{error.mean:.1f} ({error.low:.1f} – {error.high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.norm_statistics", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of nsl train")
    parser.add_argument("name", metavar="NAME", help="the name of the result")
    parser.add_argument("--data-dir", help="folder of the data sets")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    try:
        run = Run.open(arguments.run, arguments.data_dir)
        body = run_record(run, run.config)
        record = {
            "commit": commit(),
            "trained_by": run.commits(),
            **{name: body[name] for name in ("config", "data_copies", "environment")},
            **compare(run),
        }
        write_record(arguments.results / FOLDER / f"{arguments.name}.json", record)
    except (NeuralSimilarityError, FileExistsError) as error:
        parser.exit(2, f"{error}\n")
    print(table({arguments.name: record}))


if __name__ == "__main__":
    main()

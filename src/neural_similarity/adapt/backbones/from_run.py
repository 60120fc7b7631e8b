"""Feature extractors from runs of ``nsl train`` and ``nsl fewshot``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from torch import nn

from ..._json import read_json
from ...convert.merge import merged_copy
from ...data import dataset_info
from ...data.images import SEEN_SHARE
from ...errors import RunError
from ...fewshot.methods.classifiers.laplace import classifier_rows
from ...fewshot.network import remove_classifier
from ...fewshot.runs import FewShotRun
from ...models.backbone import Backbone
from ...train import Run
from ...train.settings import Settings
from ..preprocessing import Preprocessing
from .extractor import FeatureExtractor
from .files import network_source

__all__ = ["extractor_from_run"]


def extractor_from_run(folder: Path) -> FeatureExtractor:
    """The network of a run without its classifier; static similarities are merged.

    So method ``static`` starts with a plain network, as with any other backbone.
    """
    config: Settings
    if _kind(folder) == "fewshot":
        few = FewShotRun.open(folder)
        network, config, environment = few.load_network(), few.config, few.environment()
        module: nn.Module = network.backbone
        base = classifier_rows(network.head) if few.has_base_classifier() else None
    else:
        run = Run.open(folder)
        module, config, environment = run.load_model(), run.config, run.environment()
        base = classifier_rows(cast(Backbone, module).get_classifier())
    module = merged_copy(module)
    channels, side = environment["in_channels"], environment["image_size"]
    source = network_source(module, config.model, config.options, channels, side)
    crop = SEEN_SHARE if dataset_info(config.data).augment.resized_crop else 1.0
    preprocessing = Preprocessing(side, environment["mean"], environment["std"], crop=crop)
    card = f"{config.model} trained on {config.data} by: {' '.join(environment.get('command', ()))}"
    return FeatureExtractor(
        remove_classifier(module), preprocessing, f"run {folder.name}", source, card, base
    )


def _kind(folder: Path) -> Any:
    """Which command made the run."""
    try:
        return read_json(folder / "config.json", dict[str, Any], RunError).get("kind", "train")
    except RunError:
        return "train"  # opening it as such a run raises an error that names what is missing

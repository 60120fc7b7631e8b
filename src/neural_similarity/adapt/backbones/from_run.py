"""Feature extractors from runs of ``nsl train`` and ``nsl fewshot``."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from torch import nn

from ...convert.merge import merged_copy
from ...data import dataset_info
from ...data.images import SEEN_SHARE
from ...fewshot.methods.classifiers.laplace import classifier_rows
from ...fewshot.network import remove_classifier
from ...fewshot.runs import FewShotRun, open_run
from ...models.backbone import Backbone
from ..preprocessing import Preprocessing
from .extractor import FeatureExtractor
from .files import network_source

__all__ = ["extractor_from_run"]


def extractor_from_run(folder: Path) -> FeatureExtractor:
    """The network of a run without its classifier; static similarities are merged.

    So method ``static`` starts with a plain network, as with any other backbone.
    """
    run = open_run(folder)
    if isinstance(run, FewShotRun):
        network = run.load_network()
        module: nn.Module = network.backbone
        base = classifier_rows(network.head) if run.has_base_classifier() else None
    else:
        module = run.load_model()
        base = classifier_rows(cast(Backbone, module).get_classifier())
    config, environment = run.config, run.environment()
    module = merged_copy(module)
    channels, side = environment["in_channels"], environment["image_size"]
    source = network_source(module, config.model, config.options, channels, side)
    crop = SEEN_SHARE if dataset_info(config.data).augment.resized_crop else 1.0
    preprocessing = Preprocessing(side, environment["mean"], environment["std"], crop=crop)
    card = f"{config.model} trained on {config.data} by: {' '.join(environment.get('command', ()))}"
    return FeatureExtractor(
        remove_classifier(module), preprocessing, f"run {folder.name}", source, card, base
    )

"""Neural similarity learning for PyTorch.

A convolution computes ``Wᵀ M X``; M, the similarity between kernel and patch, is learned.
"""

# Names are imported when first used, so that `nsl --help` does not wait for torch. Type checkers
# and editors read the imports below; Python uses `_HOME`, and a test compares the two.

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import (
        adapt,
        convert,
        data,
        errors,
        export,
        fewshot,
        models,
        nn,
        ops,
        page,
        plot,
        structures,
        train,
    )
    from .adapt import FewShotClassifier
    from .convert import (
        TrainableSummary,
        active_similarity,
        effective_state_dict,
        filter_orthogonality_penalty,
        freeze_backbone,
        freeze_statistics,
        keep_predictions,
        list_similarities,
        load_similarity,
        save_similarity,
        set_similarity,
        similarity_parameters,
        similarity_penalty,
        trainable_summary,
        without_similarity,
    )
    from .convert.attach import attach
    from .convert.detach import detach
    from .convert.merge import merge
    from .convert.unmerge import unmerge
    from .errors import (
        AttachError,
        ChangedStatisticsWarning,
        DataError,
        DivergedError,
        DuplicateNameError,
        ExportError,
        FetchError,
        FileFormatError,
        MergeError,
        NeuralSimilarityError,
        NotFiniteError,
        ResizedMaskWarning,
        RunError,
        ShapeError,
        SkippedLayerWarning,
        UnknownNameError,
    )
    from .models import create_model, list_models
    from .nn.dynamic import DynamicSimilarity
    from .nn.predictors import (
        ConvPredictor,
        ImagePredictor,
        PairPredictor,
        PatchPredictor,
        PixelPredictor,
        SpherePredictor,
    )
    from .nn.static import StaticSimilarity

__version__ = "0.1.0"

__all__ = [
    "AttachError",
    "ChangedStatisticsWarning",
    "ConvPredictor",
    "DataError",
    "DivergedError",
    "DuplicateNameError",
    "DynamicSimilarity",
    "ExportError",
    "FetchError",
    "FewShotClassifier",
    "FileFormatError",
    "ImagePredictor",
    "MergeError",
    "NeuralSimilarityError",
    "NotFiniteError",
    "PairPredictor",
    "PatchPredictor",
    "PixelPredictor",
    "ResizedMaskWarning",
    "RunError",
    "ShapeError",
    "SkippedLayerWarning",
    "SpherePredictor",
    "StaticSimilarity",
    "TrainableSummary",
    "UnknownNameError",
    "active_similarity",
    "adapt",
    "attach",
    "convert",
    "create_model",
    "data",
    "detach",
    "effective_state_dict",
    "errors",
    "export",
    "fewshot",
    "filter_orthogonality_penalty",
    "freeze_backbone",
    "freeze_statistics",
    "keep_predictions",
    "list_models",
    "list_similarities",
    "load_similarity",
    "merge",
    "models",
    "nn",
    "ops",
    "page",
    "plot",
    "save_similarity",
    "set_similarity",
    "similarity_parameters",
    "similarity_penalty",
    "structures",
    "train",
    "trainable_summary",
    "unmerge",
    "without_similarity",
]

_HOME = {
    ".adapt": ("FewShotClassifier",),
    ".convert": (
        "TrainableSummary", "active_similarity", "attach", "detach", "effective_state_dict",
        "filter_orthogonality_penalty", "freeze_backbone", "freeze_statistics", "keep_predictions",
        "list_similarities", "load_similarity", "merge", "save_similarity", "set_similarity",
        "similarity_parameters", "similarity_penalty", "trainable_summary", "unmerge",
        "without_similarity",
    ),
    ".errors": (
        "AttachError", "ChangedStatisticsWarning", "DataError", "DivergedError",
        "DuplicateNameError", "ExportError", "FetchError", "FileFormatError", "MergeError",
        "NeuralSimilarityError", "NotFiniteError", "ResizedMaskWarning", "RunError", "ShapeError",
        "SkippedLayerWarning", "UnknownNameError",
    ),
    ".models": ("create_model", "list_models"),
    ".nn.dynamic": ("DynamicSimilarity",),
    ".nn.predictors": (
        "ConvPredictor", "ImagePredictor", "PairPredictor", "PatchPredictor", "PixelPredictor",
        "SpherePredictor",
    ),
    ".nn.static": ("StaticSimilarity",),
}  # fmt: skip
_HOMES = {name: home for home, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name)
    value = (
        getattr(import_module(home, __name__), name)
        if home
        else import_module(f".{name}", __name__)
    )
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

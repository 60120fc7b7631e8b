"""Keep the features of these tests separate from the user's."""

import pytest

from neural_similarity.adapt import feature_cache
from neural_similarity.models import PretrainedWeights


@pytest.fixture(autouse=True)
def own_feature_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(feature_cache, "cache_directory", lambda: folder)
    return folder / "features"


@pytest.fixture
def no_weights(monkeypatch):
    """As if no package of pretrained weights were installed."""
    monkeypatch.setattr(PretrainedWeights, "is_installed", lambda self: False)

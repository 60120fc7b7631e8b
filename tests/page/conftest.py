"""A project on disk; the features of these tests are kept separate from the user's."""

import pytest

from neural_similarity.adapt import feature_cache
from neural_similarity.page import open_project


@pytest.fixture(autouse=True)
def own_feature_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(feature_cache, "cache_directory", lambda: folder)
    return folder / "features"


@pytest.fixture
def project(tmp_path):
    with open_project(tmp_path / "mine") as opened:
        yield opened

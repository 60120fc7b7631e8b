"""A project on disk and in a browser; the features are kept separate from the user's."""

import pytest
from support.page_cases import COLOURS, picture, toy_backbone, write_pictures
from support.page_server import chromium, served

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


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def open_page(browser):
    """Opens pages that fail the test if a script of theirs fails."""
    contexts, troubles = [], []

    def open_page(address, **options):
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.goto(address)
        page.wait_for_selector("#view-teach h1")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "mine", toy_backbone()) as running:
        yield running


@pytest.fixture
def taught(tmp_path):
    """A project with three classes, of which one picture has a wrong label."""
    write_pictures(tmp_path / "mine", {"red": 7, "green": 7, "blue": 7})
    wrong = tmp_path / "mine" / "red" / "wrong.png"
    wrong.write_bytes(picture(COLOURS["blue"], 50))
    with served(tmp_path / "mine", toy_backbone()) as running:
        yield running

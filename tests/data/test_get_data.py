"""Fetching whole data sets from a local server: archives, single files, existing files."""

import gzip

import pytest
from support.data_files import cifar10_files, cifar10_source, fashion_source, md5, omniglot_source
from support.fake_data import own_datasets
from support.web_server import PAGE, web_server

from neural_similarity.data import dataset_info, load_dataset
from neural_similarity.data.fetching import get
from neural_similarity.data.fetching.get import find, get_data
from neural_similarity.data.fetching.sources import SOURCES
from neural_similarity.errors import FetchError, UnknownNameError


@pytest.fixture
def server(monkeypatch):
    with web_server({}) as running:
        monkeypatch.setitem(SOURCES, "cifar10", cifar10_source(running))
        monkeypatch.setitem(SOURCES, "omniglot", omniglot_source(running))
        monkeypatch.setitem(SOURCES, "fashion-mnist", fashion_source(running))
        yield running


def test_every_data_set_has_a_source_or_says_what_to_do():
    assert set(own_datasets()) <= set(SOURCES)
    for name in own_datasets():
        info, source = dataset_info(name), SOURCES[name]
        assert source.files or info.by_hand or not source.names
        for file in source.files:
            kind, _, digits = file.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[kind]
            assert any(file.place.startswith(folder) for folder in source.folders)
            assert file.name.endswith((".tar.gz", ".gz", ".zip"))


@pytest.mark.parametrize(
    ("name", "images"), [("cifar10", 100), ("fashion-mnist", 30), ("omniglot", 2)]
)
def test_a_set_is_fetched_and_can_be_read(server, tmp_path, monkeypatch, name, images):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    seen = {}
    root = tmp_path / "data"
    got = get_data(
        name, root, callback=lambda file, done, total: seen.update({file: (done, total)})
    )
    assert got.state == "fetched"
    assert got.folder == root / SOURCES[name].folders[0]
    assert list(seen) == [file.name for file in SOURCES[name].files]
    assert all(done == total for done, total in seen.values())
    assert len(load_dataset(name, "train", root)) == images
    left = [path for path in root.rglob("*") if path.name.endswith((".zip", ".tar.gz", ".part"))]
    assert left == []


@pytest.mark.parametrize(
    ("name", "state"),
    [("cifar10", "verified"), ("fashion-mnist", "verified"), ("omniglot", "there")],
)
def test_what_is_there_is_not_fetched_again(server, tmp_path, name, state):
    get_data(name, tmp_path)
    server.asked.clear()
    assert get_data(name, tmp_path).state == state
    assert server.asked == []
    # What is verified cannot get better by fetching it again.
    assert get_data(name, tmp_path, force=True).state == (
        "verified" if state != "there" else "fetched"
    )
    assert bool(server.asked) == (state == "there")


def test_other_files_in_the_place_are_left_alone(server, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name, content in cifar10_files(per_batch=10).items():
        (folder / name).write_bytes(content)
    assert get_data("cifar10", tmp_path).state == "other"
    assert server.asked == []
    assert get_data("cifar10", tmp_path, force=True).state == "fetched"
    assert get_data("cifar10", tmp_path).state == "verified"


def test_a_folder_that_lacks_something(server, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"mine")
    message = r"expected .*cifar-10-batches-py with data_batch_1.*, got one without data_batch_2\. "
    with pytest.raises(FetchError, match=message + r"It is left as it was.*--force"):
        get_data("cifar10", tmp_path)
    assert server.asked == []
    server.files["/cifar.tar.gz"] = PAGE
    with pytest.raises(FetchError, match=r"got 55 \(text/html\)"):
        get_data("cifar10", tmp_path, force=True)
    assert (folder / "data_batch_1").read_bytes() == b"mine"


def test_only_what_is_missing_is_fetched(server, tmp_path):
    get_data("fashion-mnist", tmp_path)
    get_data("omniglot", tmp_path)
    server.asked.clear()
    (tmp_path / "fashion-mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    (tmp_path / "omniglot" / "images_evaluation").rename(tmp_path / "elsewhere")
    assert get_data("fashion-mnist", tmp_path).state == "fetched"
    assert get_data("omniglot", tmp_path).state == "fetched"
    asked = [path for path, _ in server.asked]
    assert asked == ["/t10k-labels-idx1-ubyte.gz", "/images_evaluation.zip"]


def test_an_archive_that_was_downloaded_by_hand(server, tmp_path):
    archive = server.files["/cifar.tar.gz"]
    (tmp_path / "cifar.tar.gz").write_bytes(archive)
    assert get_data("cifar10", tmp_path).state == "fetched"
    assert server.asked == []
    assert md5((tmp_path / "cifar.tar.gz").read_bytes()) == md5(archive)


@pytest.mark.parametrize("name", ["cifar10", "omniglot"])
def test_the_archive_of_a_killed_get_is_taken_up_again(server, tmp_path, name):
    """Killed after the download: nothing is fetched again, and the archive goes in the end."""
    source, whole = SOURCES[name], {}
    for file in source.files:
        whole[file] = tmp_path.joinpath(file.place).with_name(f"{file.name}.part")
        whole[file].parent.mkdir(exist_ok=True)
        whole[file].write_bytes(server.files[f"/{file.name}"])
    (tmp_path / ".nsl-scratch-killed").mkdir()
    assert get_data(name, tmp_path).state == "fetched"
    assert server.asked == []
    assert not any(part.exists() for part in whole.values())
    assert find(source, tmp_path) is not None
    if name == "cifar10":  # the other unpacks into a folder of its own
        assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-py"]


@pytest.mark.parametrize("name", ["cifar10", "omniglot"])
def test_what_was_left_after_all_was_in_place_is_removed(server, tmp_path, name):
    get_data(name, tmp_path)
    places = [tmp_path.joinpath(file.place).with_name(file.name) for file in SOURCES[name].files]
    before = set(tmp_path.rglob("*"))
    for place in places:
        place.with_name(f"{place.name}.part").write_bytes(server.files[f"/{place.name}"])
    (places[0].parent / ".nsl-scratch-killed").mkdir()
    get_data(name, tmp_path)
    assert set(tmp_path.rglob("*")) == before
    half = places[0].with_name(f"{places[0].name}.part")
    half.write_bytes(b"not all of it")  # perhaps a browser's
    get_data(name, tmp_path)
    assert half.exists()


def test_another_archive_of_the_same_name_is_left_alone(server, tmp_path):
    (tmp_path / "cifar.tar.gz").write_bytes(b"mine")
    with pytest.raises(FetchError, match="It is not the file at"):
        get_data("cifar10", tmp_path)
    assert get_data("cifar10", tmp_path, force=True).state == "fetched"
    assert (tmp_path / "cifar.tar.gz").read_bytes() == b"mine"


def test_two_processes_that_unpack_the_same_archive(server, tmp_path, monkeypatch):
    """The second is refused as long as the first has not ended, whatever it does."""
    unpack = get.unpack

    def meanwhile(archive, place, replace):
        with pytest.raises(FetchError, match=r"That process is fetching the same file\. Wait"):
            get_data("cifar10", tmp_path)
        unpack(archive, place, replace=replace)

    monkeypatch.setattr(get, "unpack", meanwhile)
    assert get_data("cifar10", tmp_path).state == "fetched"
    assert get_data("cifar10", tmp_path).state == "verified"


def test_files_where_others_put_them(server, tmp_path):
    get_data("fashion-mnist", tmp_path)
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.parent.mkdir()
    (tmp_path / "fashion-mnist").rename(raw)
    for file in raw.iterdir():
        file.with_suffix("").write_bytes(gzip.decompress(file.read_bytes()))
        file.unlink()
    assert find(SOURCES["fashion-mnist"], tmp_path) == raw
    got = get_data("fashion-mnist", tmp_path)
    assert (got.folder, got.state) == (raw, "there")


def test_sets_that_are_not_fetched(tmp_path):
    assert get_data("digits", tmp_path).state == "made"
    for name in ("imagenet", "mini-imagenet"):
        with pytest.raises(
            FetchError, match=rf"got '{name}'\. .*image-net\.org.* below {tmp_path}"
        ):
            get_data(name, tmp_path)
    (tmp_path / "imagenet" / "train").mkdir(parents=True)
    (tmp_path / "imagenet" / "val").mkdir()
    assert get_data("imagenet", tmp_path, force=True).state == "there"
    with pytest.raises(UnknownNameError, match="Did you mean 'cifar10'"):
        get_data("cifar1o", tmp_path)

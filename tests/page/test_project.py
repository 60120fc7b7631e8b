"""The project on disk: nothing is lost, and no name leads outside it."""

import json
import os
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.page_cases import COLOURS, files_of, names_in, picture, write_pictures

from neural_similarity.adapt.image_folder import read_classes
from neural_similarity.data.formats import readable_formats
from neural_similarity.errors import DataError, RunError
from neural_similarity.page import RefusedError, open_project
from neural_similarity.page.project import pictures
from neural_similarity.page.project.listing import MOST_CLASSES
from neural_similarity.page.project.names import identifier

SCOTLAND = "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbsct") + "\U000e007f"


def test_what_the_page_wrote_is_what_adapt_reads(project):
    for label, colour in COLOURS.items():
        id = project.add_class(label)
        for seed in range(3):
            project.add_picture(id, f"{seed}.png", picture(colour, seed))
    dataset = read_classes(project.folder)
    assert dataset.classes == ("blue", "green", "red")
    assert list(dataset.files) == files_of(project)


def test_an_existing_folder_opens_as_it_is(tmp_path):
    write_pictures(tmp_path, {"red": 2, "blue": 1})
    (tmp_path / "red" / "deep").mkdir()
    (tmp_path / "red" / "deep" / "a.png").write_bytes(picture())
    (tmp_path / "red" / "notes.txt").write_text("not a readable picture")
    (tmp_path / ".hidden").mkdir()
    with open_project(tmp_path) as project:
        assert files_of(project) == ["blue/0.png", "red/0.png", "red/1.png", "red/deep/a.png"]


def test_a_data_set_that_is_split_is_no_project(tmp_path):
    for split in ("train", "test"):
        write_pictures(tmp_path / split, {"red": 1, "blue": 1})
    with pytest.raises(DataError, match=r"already split into test, train\. Give"):
        open_project(tmp_path).__enter__()
    assert names_in(tmp_path) == ["test", "train"]


def test_a_project_of_ours_is_opened_whatever_its_classes_are_called(tmp_path):
    with open_project(tmp_path):
        for name in ("train", "test"):
            write_pictures(tmp_path / name, {"red": 1})
    with open_project(tmp_path) as project:
        assert files_of(project) == ["test/red/0.png", "train/red/0.png"]


def test_old_formats_of_a_folder_are_shown(tmp_path):
    (tmp_path / "red").mkdir()
    for name in ("a.tga", "b.jp2"):
        Image.new("RGB", (40, 30), "red").save(tmp_path / "red" / name)
    with open_project(tmp_path) as project:
        assert len(project.listing.pictures) == 2
        for shown in project.listing.pictures:
            assert project.small_copy(shown.id)[:2] == b"\xff\xd8"


def test_two_at_once_are_refused_and_the_next_one_is_not(tmp_path):
    with open_project(tmp_path), pytest.raises(RunError, match="another `nsl teach` has open"):
        open_project(tmp_path).__enter__()
    with open_project(tmp_path):
        pass


def test_a_file_or_a_link_is_no_project(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="expected a folder, got a file"):
        open_project(tmp_path / "file").__enter__()
    (tmp_path / "p").mkdir()
    private = tmp_path / "p" / ".nsl-teach"
    for link in (private, private / "bin", private / "small"):
        link.symlink_to(tmp_path)
        with pytest.raises(RunError, match="got a link"):
            open_project(tmp_path / "p").__enter__()
        link.unlink()
        private.mkdir(exist_ok=True)


def test_a_folder_of_everything_is_refused(tmp_path):
    for number in range(MOST_CLASSES + 1):
        (tmp_path / str(number)).mkdir()
    with pytest.raises(RefusedError, match="expected at most 200 folders"):
        open_project(tmp_path).__enter__()
    assert len(names_in(tmp_path)) == MOST_CLASSES + 1  # and nothing of ours


def test_an_error_leaves_nothing_unless_there_is_something_to_keep(tmp_path):
    for place, has_work in ((tmp_path / "new", False), (tmp_path / "used", True)):
        opened = open_project(place)
        project = opened.__enter__()
        if has_work:
            project.delete_class(project.add_class("red"))
            project.add_picture(project.add_class("blue"), "a.png", picture())
        assert not opened.__exit__(RunError, RunError("no port"), None)
        assert place.exists() == has_work
    with open_project(tmp_path / "used") as project:
        assert files_of(project) == ["blue/a.png"]


def test_pictures_in_no_class_are_told(tmp_path):
    write_pictures(tmp_path, {"red": 1})
    for name in ("b.JPG", "a.png", ".hidden.png", "notes.txt"):
        (tmp_path / name).write_bytes(picture())
    with open_project(tmp_path) as project:
        assert project.listing.loose == ("a.png", "b.JPG")
        assert files_of(project) == ["red/0.png"]
        (tmp_path / "a.png").unlink()
        project.refresh()
        assert project.listing.loose == ("b.JPG",)


@pytest.mark.parametrize(
    "name",
    ["", "  ", "../up", "a/b", "a\\b", "..", ".", ".hidden", "a\0b", "a\u202eb", "end.", "x" * 201,
     "a\u200db", "\u200d", "👩\u200d", "\ufeffa", "a\U000e0067"],
)  # fmt: skip
def test_bad_class_names_are_refused(project, name):
    with pytest.raises(RefusedError):
        project.add_class(name)
    assert names_in(project.folder) == [".nsl-teach"]
    assert names_in(project.folder.parent) == ["mine"]


@pytest.mark.parametrize("name", ["con", "Nul.old", "COM1", "lpt³", "aux .x", "CONIN$"])
def test_names_of_devices_are_refused_as_such(project, name):
    with pytest.raises(RefusedError, match="Windows reserves this name for a device"):
        project.add_class(name)
    assert project.listing.labels == ()


@pytest.mark.parametrize("name", ["a:b", "what?", "<b>bold", 'a"b', "a|b", "*"])
def test_characters_that_windows_forbids_are_named(project, name):
    with pytest.raises(RefusedError, match=r"cannot contain '[:?<\"|*]'\. Windows"):
        project.add_class(name)
    assert project.listing.labels == ()


@pytest.mark.parametrize(
    "name",
    ["Blaumeise ü", "鳥", "R&D's", "Console", "com10", "👩‍🔬", "👩🏽‍🔬", "🏳️‍🌈", SCOTLAND,
     "می\u200cخواهم", "क्\u200dष"],
)  # fmt: skip
def test_names_of_any_language_and_emoji_are_folders(project, name):
    project.add_class(name)
    assert (project.folder / name).is_dir()


def test_a_folder_with_another_name_stays_what_it_is(tmp_path):
    (tmp_path / "a:b").mkdir()
    with open_project(tmp_path) as project:
        assert project.rename_class(identifier("a:b"), "a:b") == identifier("a:b")
        assert project.rename_class(identifier("a:b"), "a b") == identifier("a b")


def test_a_name_is_taken_whatever_its_capitals(project):
    project.add_class("Tit")
    with pytest.raises(RefusedError, match=r"A class 'Tit' already exists\. Many") as error:
        project.add_class("tit")
    assert error.value.status == 409
    (project.folder / "plain file").write_text("")
    with pytest.raises(RefusedError, match="already contains something named"):
        project.add_class("plain file")


@pytest.mark.parametrize(
    "name", ["../../evil.png", "/etc/evil.png", "..\\evil.png", "evil.png.html"]
)
def test_names_of_files_stay_in_their_class(project, name):
    kept = project.add_picture(project.add_class("red"), name, picture())
    assert (project.folder / kept.file).parent == project.folder / "red"
    assert kept.file.endswith(".png")


def test_identifiers_are_no_paths(project):
    project.add_class("red")
    for id in ("../red", "red", identifier("../red"), ""):
        with pytest.raises(RefusedError, match="no longer exists"):
            project.add_picture(id, "a.png", picture())
        with pytest.raises(RefusedError, match="no longer exists"):
            project.small_copy(id)
        with pytest.raises(RefusedError, match="no longer in the bin"):
            project.restore(id)


def test_the_same_picture_twice_is_refused_and_the_same_name_is_not(project):
    id = project.add_class("red")
    project.add_picture(id, "a.png", picture(seed=1))
    with pytest.raises(RefusedError, match="already in the class"):
        project.add_picture(id, "b.png", picture(seed=1))
    project.add_picture(id, "a.png", picture(seed=2))
    assert files_of(project) == ["red/a-2.png", "red/a.png"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not a readable picture"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a readable picture"),
        (b"<html><script>alert(1)</script>", "not a readable picture"),
        (picture(form="JPEG", size=(90, 80))[:900], "damaged"),
        (picture(size=(90, 80))[:2000], "damaged"),
    ],
    ids=["empty", "svg", "html", "half a jpeg", "half a png"],
)
def test_what_is_no_whole_picture_is_refused(project, content, words):
    with pytest.raises(RefusedError, match=words):
        project.add_picture(project.add_class("red"), "a.png", content)
    assert files_of(project) == []
    assert names_in(project.folder / "red") == []


def test_pictures_of_phones(project, monkeypatch):
    """HEIC is read with its plug-in, which is named where it is missing."""
    readable_formats()
    file = BytesIO()
    Image.new("RGB", (64, 48), "red").save(file, "HEIF")
    id = project.add_class("red")
    project.add_picture(id, "a.jpg", file.getvalue())
    assert files_of(project) == ["red/a.heic"]
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    monkeypatch.setattr(pictures, "readable_formats", lambda: ["PNG"])
    with pytest.raises(RefusedError, match="Install the package pillow-heif, or convert it to"):
        project.add_picture(id, "b.jpg", file.getvalue())


def test_large_files_and_many_pixels_are_refused(project, monkeypatch):
    id = project.add_class("red")
    file = BytesIO()
    Image.new("1", (10_000, 10_000)).save(file, "PNG")  # 100 million pixels in 12 kB
    with pytest.raises(RefusedError, match="60 million") as error:
        project.add_picture(id, "bomb.png", file.getvalue())
    assert error.value.status == 413
    monkeypatch.setattr("neural_similarity.page.project.store.MOST_BYTES", 100)
    with pytest.raises(RefusedError, match="larger than"):
        project.add_picture(id, "a.png", picture())


def test_copies_are_upright_and_small(project):
    pixels = np.zeros((300, 600, 3), np.uint8)
    pixels[:, :300] = 255  # the left half is white
    exif = Image.Exif()
    exif[0x0112] = 6  # held on its side: left becomes top
    file = BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", exif=exif)
    kept = project.add_picture(project.add_class("a"), "a.jpg", file.getvalue())
    for large, size in ((False, (128, 256)), (True, (300, 600))):
        copy = Image.open(BytesIO(project.small_copy(kept.id, large)))
        assert (copy.format, copy.size) == ("JPEG", size)
        assert not copy.getexif()
        assert copy.getpixel((60, 5))[0] > 240
        assert copy.getpixel((60, size[1] - 5))[0] < 15


def test_copies_are_made_once(project, monkeypatch):
    kept = project.add_picture(project.add_class("a"), "a.png", picture())
    monkeypatch.setattr(pictures, "_decoded", lambda *_: pytest.fail("decoded again"))
    assert project.small_copy(kept.id)[:2] == b"\xff\xd8"


def test_pictures_move_and_classes_get_other_names(project):
    red, blue = project.add_class("red"), project.add_class("blue")
    one = project.add_picture(red, "a.png", picture(seed=1))
    project.add_picture(blue, "a.png", picture(seed=2))
    (moved,), _ = project.move_pictures([one.id], blue)
    assert project.listing.picture(moved).file == "blue/a-2.png"
    with pytest.raises(RefusedError, match="already"):
        project.rename_class(red, "Blue")
    project.rename_class(blue, "BLUE")
    assert files_of(project) == ["BLUE/a-2.png", "BLUE/a.png"]
    assert project.listing.labels == ("BLUE", "red")


def test_a_class_is_not_renamed_onto_a_file(project):
    dog = project.add_class("dog")
    (project.folder / "Dog").write_text("mine")
    with pytest.raises(RefusedError, match="already contains something named 'Dog'"):
        project.rename_class(dog, "Dog")
    (project.folder / "Dog").unlink()
    (project.folder / "Dog").symlink_to(project.folder / "dog")
    with pytest.raises(RefusedError, match="already contains something named 'Dog'"):
        project.rename_class(dog, "Dog")


def test_many_pictures_move_without_listing_the_folder_for_each(project, monkeypatch):
    red, blue = project.add_class("red"), project.add_class("blue")
    ids = [project.add_picture(red, "a.png", picture(seed=n)).id for n in range(4)]
    project.add_picture(blue, "a.png", picture(seed=9))
    lists, iterdir = [], Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: lists.append(path) or iterdir(path))
    _, undo = project.move_pictures(ids, blue)
    assert lists == [project.folder / "blue"]
    names = ("a-2-2", "a-2", "a-3", "a-4", "a")  # what was a-2 is a-2-2 now
    assert files_of(project) == [f"blue/{name}.png" for name in names]
    project.undo_move(undo)
    assert lists[1:] == [project.folder / "red"]
    assert len(project.listing.of("red")) == 4


def test_changes_are_told_and_files_from_elsewhere_are_found(project):
    calls = []
    project.on_change = lambda: calls.append(project.listing.revision)
    id = project.add_class("red")
    project.add_picture(id, "a.png", picture(seed=1))
    project.refresh()
    assert len(calls) == 2
    (project.folder / "red" / "b.png").write_bytes(picture(seed=2))
    project.refresh()
    assert len(calls) == 3
    assert calls == sorted(set(calls))
    assert len(files_of(project)) == 2


def test_labels_that_stay_and_damaged_records(tmp_path):
    write_pictures(tmp_path, {"red": 1})
    with open_project(tmp_path) as project:
        (one,) = project.listing.pictures
        project.keep_label(one.id)
    with open_project(tmp_path) as project:
        assert kept_in(project) == ["red/0.png"]
    (tmp_path / ".nsl-teach" / "kept.json").write_text("{")
    (tmp_path / ".nsl-teach" / "history.json").write_text("[1]")
    with open_project(tmp_path) as project:
        assert kept_in(project) == []
        assert project.records.history == []


def kept_in(project):
    return [one.file for one in project.listing.pictures if project.is_kept(one)]


def test_a_confirmed_label_follows_its_class_and_its_picture(tmp_path):
    write_pictures(tmp_path, {"red": 2, "blue": 1})
    with open_project(tmp_path) as project:
        project.keep_label(project.listing.of("red")[0].id)
        project.rename_class(identifier("red"), "rouge")
        assert kept_in(project) == ["rouge/0.png"]
        (moved,), _ = project.move_pictures([identifier("rouge/0.png")], identifier("blue"))
        assert kept_in(project) == []  # nobody has said that it is blue
        project.move_pictures([moved], identifier("rouge"))
        assert kept_in(project) == ["rouge/0-2.png"]  # another name, the same picture
        (entry,) = project.delete_pictures([identifier("rouge/0-2.png")])
        project.rename_class(identifier("rouge"), "red")
        project.restore(entry)
    with open_project(tmp_path) as project:
        assert kept_in(project) == ["red/0-2.png"]
        (tmp_path / "red" / "0-2.png").write_bytes(picture(seed=77))
        project.refresh()
        assert kept_in(project) == []


def test_confirmed_labels_of_earlier_versions_are_read(tmp_path):
    write_pictures(tmp_path, {"red": 2})
    (tmp_path / ".nsl-teach").mkdir()
    old = [["red/1.png", "red"], ["red/gone.png", "red"], ["../../etc/passwd", "red"]]
    (tmp_path / ".nsl-teach" / "kept.json").write_text(json.dumps(old))
    with open_project(tmp_path) as project:
        assert kept_in(project) == ["red/1.png"]
        project.rename_class(identifier("red"), "rouge")
        assert kept_in(project) == ["rouge/1.png"]


def test_what_is_no_file_is_no_picture(tmp_path):
    write_pictures(tmp_path, {"red": 1})
    os.mkfifo(tmp_path / "red" / "pipe.jpg")
    (tmp_path / "red" / "folder.jpg").mkdir()
    with open_project(tmp_path) as project:
        assert files_of(project) == ["red/0.png"]


def test_files_of_equal_size_and_time_are_told_apart(tmp_path):
    """As BMP files from one zip are: deleting one and moving the other in its place."""
    for label in ("blue", "red"):
        (tmp_path / label).mkdir()
        (tmp_path / label / "a.bmp").write_bytes(picture(COLOURS[label], form="BMP"))
        os.utime(tmp_path / label / "a.bmp", (10**9, 10**9))
    with open_project(tmp_path) as project:
        (old,) = project.listing.of("red")
        before = project.small_copy(old.id)
        project.keep_label(old.id)
        project.delete_pictures([old.id])
        project.move_pictures([project.listing.of("blue")[0].id], identifier("red"))
        (new,) = project.listing.of("red")
        assert (new.file, new.size, new.time) == (old.file, old.size, old.time)
        assert new.version != old.version
        assert project.small_copy(new.id) != before
        assert not project.is_kept(new)


def test_a_link_that_would_break_is_not_moved(tmp_path):
    write_pictures(tmp_path, {"red": 1, "blue": 0})
    deep = tmp_path / "red" / "deep"
    deep.mkdir()
    (deep / "inner.png").symlink_to("../0.png")
    (deep / "outer.png").symlink_to(tmp_path / "red" / "0.png")
    with open_project(tmp_path) as project:
        ids = [identifier("red/deep/outer.png"), identifier("red/deep/inner.png")]
        with pytest.raises(RefusedError, match=r"inner\.png is a link that works only") as error:
            project.move_pictures(ids, identifier("blue"))
        assert error.value.status == 409
        assert files_of(project) == ["red/0.png", "red/deep/inner.png", "red/deep/outer.png"]
        project.move_pictures(ids[:1], identifier("blue"))
        assert files_of(project) == ["blue/outer.png", "red/0.png", "red/deep/inner.png"]


def test_a_picture_is_added_although_another_of_its_size_is_gone(project):
    id = project.add_class("red")
    content = picture(seed=1)
    (project.folder / project.add_picture(id, "a.png", content).file).unlink()
    assert project.add_picture(id, "b.png", content).file == "red/b.png"

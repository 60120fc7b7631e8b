"""The bin of a project: what was deleted or moved comes back, and nothing else does."""

import errno
import json
import shutil

import pytest
from support.page_cases import files_of, names_in, picture, write_pictures

from neural_similarity.page import RefusedError, open_project
from neural_similarity.page.project import bin, store
from neural_similarity.page.project.names import identifier


def test_deleted_pictures_and_classes_come_back(project):
    id = project.add_class("red")
    kept = [project.add_picture(id, f"{n}.png", picture(seed=n)) for n in range(3)]
    before = project.listing.pictures
    (entry,) = project.delete_pictures([kept[0].id, kept[1].id])
    assert files_of(project) == ["red/2.png"]
    assert project.restore(entry) == id
    assert project.listing.pictures == before
    entry = project.delete_class(id)
    assert project.listing.labels == ()
    assert project.bin.entries()[entry].count == 3
    project.restore(entry)
    assert project.listing.pictures == before
    assert project.bin.entries() == {}


def test_what_comes_back_overwrites_nothing(project):
    id = project.add_class("red")
    project.add_picture(id, "a.png", picture(seed=1))
    entry = project.delete_class(id)
    project.add_picture(project.add_class("red"), "a.png", picture(seed=2))
    project.restore(entry)
    assert files_of(project) == ["red/a-2.png", "red/a.png"]
    assert (project.folder / "red/a.png").read_bytes() == picture(seed=2)
    assert (project.folder / "red/a-2.png").read_bytes() == picture(seed=1)


def test_pictures_do_not_come_back_into_a_file(project):
    kept = project.add_picture(project.add_class("cat"), "a.png", picture(seed=1))
    (entry,) = project.delete_pictures([kept.id])
    (project.folder / "cat").rmdir()
    (project.folder / "cat").write_text("mine")
    with pytest.raises(RefusedError, match="already contains something named 'cat'"):
        project.restore(entry)
    assert list(project.bin.entries()) == [entry]


def test_a_delete_that_was_killed_loses_nothing(project, monkeypatch):
    id = project.add_class("red")
    kept = [project.add_picture(id, f"{n}.png", picture(seed=n)) for n in range(3)]
    rename, calls = type(project.folder).rename, []

    def killed(self, target):
        if self.suffix == ".png" and calls:
            raise KeyboardInterrupt
        calls.append(self)
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(type(project.folder), "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            project.delete_pictures([one.id for one in kept])
    project.refresh()
    assert len(files_of(project)) == 2
    (entry,) = project.bin.entries()
    project.restore(entry)
    assert len(files_of(project)) == 3


@pytest.mark.parametrize("label", ["../../out", "/tmp", "..", ".nsl-teach", ""])
def test_a_bin_of_somebody_else_leads_nowhere(project, label):
    place = project.folder / ".nsl-teach" / "bin" / "000001"
    (place / "files").mkdir(parents=True)
    (place / "files" / "a.png").write_bytes(picture())
    (place / "entry.json").write_text(json.dumps({"label": label, "count": 1, "whole": False}))
    assert project.bin.entries() == {}
    with pytest.raises(RefusedError, match="no longer in the bin"):
        project.restore("000001")
    assert (place / "files" / "a.png").exists()


def test_an_emptied_bin_is_empty(project):
    id = project.add_class("red")
    entry = project.delete_class(id)
    project.empty_bin()
    assert project.bin.entries() == {}
    with pytest.raises(RefusedError, match="no longer in the bin"):
        project.restore(entry)


def test_a_move_can_be_undone(tmp_path):
    write_pictures(tmp_path, {"red": 2, "green": 1, "blue": 1})
    (tmp_path / "red" / "deep").mkdir()
    (tmp_path / "red" / "1.png").rename(tmp_path / "red" / "deep" / "1.png")
    with open_project(tmp_path) as project:
        before = project.listing.pictures
        ids = [one.id for one in before]
        moved, name = project.move_pictures(ids, identifier("blue"))
        assert len(moved) == 3
        assert len(project.listing.of("blue")) == 4
        project.undo_move(name)
        assert project.listing.pictures == before
        with pytest.raises(RefusedError, match="have since been moved or changed"):
            project.undo_move(name)
        with pytest.raises(RefusedError, match="have since been moved or changed"):
            project.undo_move("../../red")


def test_an_undone_move_follows_names_and_spares_what_changed_since(tmp_path):
    write_pictures(tmp_path, {"red": 3, "blue": 0, "green": 0})
    with open_project(tmp_path) as project:
        ids = [one.id for one in project.listing.of("red")]
        _, name = project.move_pictures(ids, identifier("blue"))
        project.rename_class(identifier("red"), "rouge")
        project.rename_class(identifier("blue"), "bleu")
        project.move_pictures([identifier("bleu/0.png")], identifier("green"))
        (tmp_path / "bleu" / "1.png").write_bytes(picture(seed=50))
        project.add_picture(identifier("rouge"), "2.png", picture(seed=60))
        project.refresh()
        project.undo_move(name)
        assert files_of(project) == ["bleu/1.png", "green/0.png", "rouge/2-2.png", "rouge/2.png"]


def test_an_undone_move_makes_its_class_again_if_there_is_room(tmp_path, monkeypatch):
    write_pictures(tmp_path, {"red": 1, "blue": 0})
    with open_project(tmp_path) as project:
        _, name = project.move_pictures([project.listing.pictures[0].id], identifier("blue"))
        project.delete_class(identifier("red"))
        with monkeypatch.context() as patch:
            patch.setattr(store, "MOST_CLASSES", 1)
            with pytest.raises(RefusedError, match="at most"):
                project.undo_move(name)
        project.undo_move(name)
        assert files_of(project) == ["red/0.png"]


def test_a_class_that_is_a_link_is_deleted_and_restored_as_a_link(tmp_path):
    write_pictures(tmp_path / "elsewhere", {"red": 2})
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "red").symlink_to("../elsewhere/red")
    with open_project(mine) as project:
        assert files_of(project) == ["red/0.png", "red/1.png"]
        entry = project.delete_class(identifier("red"))
        assert project.bin.entries()[entry].count == 2
        project.restore(entry)
        assert (mine / "red").is_symlink()
        entry = project.delete_class(identifier("red"))
        project.add_class("red")
        assert project.restore(entry) == identifier("red-2")
        assert (mine / "red-2").is_symlink()
        assert files_of(project) == ["red-2/0.png", "red-2/1.png"]
        project.delete_class(identifier("red-2"))
        project.empty_bin()
    assert names_in(tmp_path / "elsewhere" / "red") == ["0.png", "1.png"]


def test_the_bin_is_not_read_again_for_every_request(project, monkeypatch):
    entry = project.delete_class(project.add_class("red"))
    with monkeypatch.context() as patch:
        patch.setattr(bin, "_read_entry", lambda *_: pytest.fail("read again"))
        assert list(project.bin.entries()) == [entry]
    shutil.rmtree(project.folder / ".nsl-teach" / "bin" / entry)
    revision = project.listing.revision
    project.refresh()
    assert project.bin.entries() == {}
    assert project.listing.revision > revision


def test_a_bin_with_links_leads_nowhere(tmp_path):
    outside = tmp_path / "outside"
    (outside / "red").mkdir(parents=True)
    (outside / "red" / "secret.png").write_bytes(picture())
    place = tmp_path / "mine" / ".nsl-teach" / "bin" / "000001"
    place.mkdir(parents=True)
    for whole in (False, True):
        entry = {"label": "red", "count": 1, "whole": whole}
        (place / "entry.json").write_text(json.dumps(entry))
        (place / "files").symlink_to(outside)
        with open_project(tmp_path / "mine") as project:
            assert project.bin.entries() == {}
            with pytest.raises(RefusedError, match="no longer in the bin"):
                project.restore("000001")
        (place / "files").unlink()
    assert (outside / "red" / "secret.png").exists()


def test_a_picture_that_somebody_else_deleted_is_skipped(tmp_path):
    write_pictures(tmp_path, {"red": 3})
    with open_project(tmp_path) as project:
        ids = [one.id for one in project.listing.pictures]
        (tmp_path / "red" / "1.png").unlink()
        (entry,) = project.delete_pictures(ids)
        assert files_of(project) == []
        assert project.bin.entries()[entry].count == 2
        project.restore(entry)
        assert files_of(project) == ["red/0.png", "red/2.png"]


def test_an_entry_of_the_bin_never_gets_an_old_name(tmp_path):
    write_pictures(tmp_path, {"red": 2})
    with open_project(tmp_path) as project:
        first, second = (one.id for one in project.listing.pictures)
        (old,) = project.delete_pictures([first])
        project.empty_bin()
        (new,) = project.delete_pictures([second])
        assert new != old


def test_emptying_the_bin_deletes_the_copies_as_well(tmp_path):
    write_pictures(tmp_path, {"red": 2})
    with open_project(tmp_path) as project:
        first, second = project.listing.pictures
        for one in (first, second):
            project.small_copy(one.id)
            project.small_copy(one.id, large=True)
        project.delete_pictures([first.id])
        assert len(list(project.folder.rglob("*.jpg"))) == 4  # it may still come back
        project.empty_bin()
        copies = list(project.folder.rglob("*.jpg"))
        assert [copy.stem for copy in copies] == [second.version] * 2


@pytest.mark.parametrize(("limit", "most"), [("MOST_CLASSES", 1), ("MOST_PICTURES", 2)])
def test_what_is_too_much_stays_in_the_bin(tmp_path, monkeypatch, limit, most):
    write_pictures(tmp_path, {"red": 2, "blue": 1})
    with open_project(tmp_path) as project:
        entry = project.delete_class(identifier("blue"))
        monkeypatch.setattr(store, limit, most)
        with pytest.raises(RefusedError, match="at most"):
            project.restore(entry)
        assert list(project.bin.entries()) == [entry]
        assert not (tmp_path / "blue").exists()


def test_a_restored_class_keeps_its_links_to_folders(tmp_path):
    """The class is merged into a new one of its name, file by file."""
    write_pictures(tmp_path / "elsewhere", {"blue": 1})
    write_pictures(tmp_path / "mine", {"red": 1})
    (tmp_path / "mine" / "red" / "more").symlink_to(tmp_path / "elsewhere" / "blue")
    with open_project(tmp_path / "mine") as project:
        assert files_of(project) == ["red/0.png", "red/more/0.png"]
        entry = project.delete_class(identifier("red"))
        project.add_class("red")
        project.restore(entry)
        assert files_of(project) == ["red/0.png", "red/more/0.png"]
        assert (project.folder / "red" / "more").is_symlink()


@pytest.mark.parametrize(
    ("old", "new"), [("Cat", "cat"), ("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\u0301")]
)
def test_what_comes_back_does_not_take_a_name_that_is_the_same_elsewhere(tmp_path, old, new):
    """Many systems would merge the two folders when the project is copied there."""
    for whole in (True, False):
        with open_project(tmp_path / str(whole)) as project:
            id = project.add_class(old)
            kept = project.add_picture(id, "a.png", picture())
            entry = project.delete_class(id) if whole else project.delete_pictures([kept.id])[0]
            shutil.rmtree(project.folder / old, ignore_errors=True)
            (project.folder / new).mkdir()
            project.refresh()
            assert project.restore(entry) == identifier(f"{old}-2")
            assert files_of(project) == [f"{old}-2/a.png"]
            assert project.bin.entries() == {}


def test_a_class_that_was_always_there_beside_its_twin_comes_back_under_another_name(tmp_path):
    for name in ("Cat", "cat"):
        (tmp_path / name).mkdir()
    with open_project(tmp_path) as project:
        if len(project.listing.labels) < 2:
            pytest.skip("this disk ignores case")
        project.restore(project.delete_class(identifier("Cat")))
        assert project.listing.labels == ("Cat-2", "cat")


def test_a_link_that_needs_another_name_counts_as_a_class(tmp_path, monkeypatch):
    write_pictures(tmp_path / "elsewhere", {"red": 1})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "red").symlink_to(tmp_path / "elsewhere" / "red")
    with open_project(tmp_path / "mine") as project:
        entry = project.delete_class(identifier("red"))
        project.add_class("red")
        monkeypatch.setattr(store, "MOST_CLASSES", 1)
        with pytest.raises(RefusedError, match="at most"):
            project.restore(entry)
        assert list(project.bin.entries()) == [entry]


def test_what_holds_no_file_is_not_in_the_bin(tmp_path, monkeypatch):
    write_pictures(tmp_path, {"red": 1, "blue": 1, "green": 0})
    (tmp_path / "red" / "deep").mkdir()
    (tmp_path / "red" / "0.png").rename(tmp_path / "red" / "deep" / "0.png")
    with open_project(tmp_path) as project:
        (one,) = project.listing.of("red")
        (tmp_path / one.file).unlink()
        project.delete_pictures([one.id])
        assert project.bin.entries() == {}
        (entry,) = project.delete_pictures([project.listing.of("blue")[0].id])
        empty = project.delete_class(identifier("green"))
        with monkeypatch.context() as patch:  # the process is killed
            patch.setattr(shutil, "rmtree", lambda *_, **__: None)
            project.restore(entry)
    with open_project(tmp_path) as project:
        assert list(project.bin.entries()) == [empty]
        project.restore(empty)
        assert "green" in project.listing.labels


def test_a_class_is_in_the_bin_as_long_as_it_holds_a_file(tmp_path):
    place = tmp_path / ".nsl-teach" / "bin" / "000001"
    (place / "files" / "red" / "deep").mkdir(parents=True)
    (place / "entry.json").write_text(json.dumps({"label": "red", "count": 1, "whole": True}))
    with open_project(tmp_path) as project:
        assert project.bin.entries() == {}
    (place / "files" / "red" / "deep" / "a.png").write_bytes(picture())
    with open_project(tmp_path) as project:
        project.restore("000001")
        assert files_of(project) == ["red/deep/a.png"]


def test_a_file_that_somebody_else_deleted_stops_no_move(tmp_path):
    write_pictures(tmp_path, {"red": 4, "blue": 0})
    with open_project(tmp_path) as project:
        ids = [one.id for one in project.listing.pictures]
        (tmp_path / "red" / "1.png").unlink()
        moved, name = project.move_pictures(ids, identifier("blue"))
        assert len(moved) == 3
        assert files_of(project) == ["blue/0.png", "blue/2.png", "blue/3.png"]
        (tmp_path / "blue" / "2.png").unlink()
        project.undo_move(name)
        assert files_of(project) == ["red/0.png", "red/3.png"]


def test_a_move_that_failed_half_way_can_be_undone(tmp_path, monkeypatch):
    write_pictures(tmp_path, {"red": 3, "blue": 0})
    rename = type(tmp_path).rename

    def failing(self, target):
        if self.name == "1.png":
            raise OSError(errno.EIO, "Input/output error", str(self))
        return rename(self, target)

    with open_project(tmp_path) as project:
        ids = [one.id for one in project.listing.pictures]
        with monkeypatch.context() as patch:
            patch.setattr(type(tmp_path), "rename", failing)
            with pytest.raises(OSError, match="Input/output"):
                project.move_pictures(ids, identifier("blue"))
        assert files_of(project) == ["blue/0.png", "red/1.png", "red/2.png"]
        (name,) = project.moves.possible(project.listing)
        project.undo_move(name)
        assert files_of(project) == ["red/0.png", "red/1.png", "red/2.png"]
        _, name = project.move_pictures(ids, identifier("blue"))
        with monkeypatch.context() as patch:
            patch.setattr(type(tmp_path), "rename", failing)
            with pytest.raises(OSError, match="Input/output"):
                project.undo_move(name)
        assert files_of(project) == ["blue/1.png", "blue/2.png", "red/0.png"]
        project.undo_move(name)
        assert files_of(project) == ["red/0.png", "red/1.png", "red/2.png"]


@pytest.mark.parametrize("label", ["red\ud800", "\udcff"])
def test_labels_that_are_no_text_are_not_read(tmp_path, label):
    """They could not be sent to the page."""
    private = tmp_path / ".nsl-teach"
    (private / "bin" / "000001" / "files").mkdir(parents=True)
    (private / "bin" / "000001" / "files" / "a.png").write_bytes(picture())
    entry = {"label": label, "count": 1, "whole": False}
    (private / "bin" / "000001" / "entry.json").write_text(json.dumps(entry))
    (private / "kept.json").write_text(json.dumps([[f"{label}/a.png", label], ["key", "red"]]))
    with open_project(tmp_path) as project:
        assert project.bin.entries() == {}
        assert project.records.kept_labels == {"red"}

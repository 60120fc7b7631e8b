"""What tests of files and folders write, read and look for."""

from neural_similarity import _io


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def write(folder, content):
    folder.mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(text)


def read(folder):
    return {path.name: path.read_text() for path in _io.foreign_entries(folder)}


def leftovers(folder):
    return list(folder.rglob(".nsl-*"))

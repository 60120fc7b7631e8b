"""Nothing in the folder where a command runs is imported, except the module that the user names."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from support.command import Ended, nsl_process
from support.data_files import image_folder

import neural_similarity as ns
from neural_similarity.adapt import load_backbone
from neural_similarity.cli.shared.one_module import named_module_here, one_module

ADAPT = ("adapt", "mine", "--out", "birds", "--method", "proto", "--folds", 2, "--no-onnx")
NETWORK = """
import subprocess, sys
from torch import nn
def make():
    subprocess.run([sys.executable, "-c", "import colorsys"], check=True)
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(48, 9))
"""
SCRIPT = "import sys\nfrom neural_similarity.cli import main\nsys.exit(main())\n"


@pytest.fixture
def hostile(tmp_path):
    """A folder of images among files that are named like the modules of others."""
    folder = tmp_path / "hostile"
    image_folder(folder / "mine", images=3)
    names = {
        name.partition(".")[0] for name, module in sys.modules.items() if _is_installed(module)
    }
    names |= {"colorsys", "json", "logging", "multiprocessing", "random", "shutil", "subprocess"}
    names |= {"PIL", "matplotlib", "numpy", "rich", "safetensors", "timm", "torch", "typer"}
    for name in names - {"__main__", "neural_similarity"}:
        (folder / f"{name}.py").write_text(_trap(folder))
    (folder / "experiments").mkdir()
    for name in ("__init__", "reproduce"):
        (folder / "experiments" / f"{name}.py").write_text(_trap(folder))
    return folder


def _is_installed(module):
    return "site-packages" in (getattr(module, "__file__", None) or "")


def _trap(folder):
    return f"open({str(folder / 'sprung')!r}, 'a').write(__name__ + ' ')\nraise SystemExit(3)\n"


def _script(folder, *arguments):
    """``nsl`` as the script that pip installs: its folder is first on the path, not the current."""
    script = folder.parent / "bin" / "nsl"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, *map(str, arguments)], cwd=folder, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    return Ended(done.returncode, done.stdout, done.stderr)


def _assert_fine(ended, folder):
    sprung = folder / "sprung"
    assert not sprung.exists(), sprung.read_text()
    assert ended.code == 0, ended.err


def test_as_a_script(hostile):
    _assert_fine(_script(hostile, "reproduce", "list"), hostile)


def test_as_a_module(hostile):
    (hostile / "their_network.py").write_text(NETWORK)
    options = ("--image-size", 8, "--mean", "0.5,0.5,0.5", "--std", "0.2,0.2,0.2")
    command = (*ADAPT, *options, "--backbone", "their_network:make")
    _assert_fine(nsl_process(*command, cwd=hostile), hostile)
    assert (hostile / "birds" / "confusion.png").is_file()


@pytest.mark.slow  # three processes that import torch
def test_under_torchrun(hostile):
    torchrun = Path(sys.executable).with_name("torchrun")
    command = [torchrun, "--standalone", "--nproc-per-node", "2", "-m", "neural_similarity"]
    command += ["train", "--data", "digits", "--steps", "1", "--set", "options.width=8"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--out", "run"], cwd=hostile, env=environment, capture_output=True, text=True,
        timeout=240,
    )  # fmt: skip
    _assert_fine(Ended(done.returncode, done.stdout, done.stderr), hostile)


def test_a_trap_works(hostile):
    """Or the tests above would prove nothing."""
    subprocess.run([sys.executable, "-c", "import matplotlib"], cwd=hostile, check=False)
    assert (hostile / "sprung").read_text() == "matplotlib "


class TestOneModule:
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        for name in ("only_here", "helper_here", "colorsys", "timm_here"):
            (tmp_path / f"{name}.py").write_text("where = 'here'\n")
        package = tmp_path / "package_here"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "inner.py").write_text("from . import other\n")
        (package / "other.py").write_text("")
        yield tmp_path
        for name in [name for name in sys.modules if "_here" in name]:
            del sys.modules[name]

    def test_only_that_module_is_found(self, folder):
        path, finders = list(sys.path), list(sys.meta_path)
        with one_module(folder, "only_here"):
            import only_here

            with pytest.raises(ModuleNotFoundError, match="helper_here"):
                import helper_here  # noqa: F401
        assert only_here.where == "here"
        assert (sys.path, sys.meta_path) == (path, finders)

    def test_an_installed_module_comes_first_unless_said_otherwise(self, folder, monkeypatch):
        for first in (False, True):
            with monkeypatch.context() as patch, one_module(folder, "colorsys", first=first):
                patch.setitem(sys.modules, "colorsys", None)  # is as before at the end
                del sys.modules["colorsys"]
                module = import_module("colorsys")
            assert (Path(module.__file__).parent == folder) == first

    def test_a_package_with_its_modules(self):
        with named_module_here("package_here.inner:make"):
            import package_here.inner
        assert package_here.other.__name__ == "package_here.other"

    @pytest.mark.parametrize("spec", [None, "cnn4-plain", "only_here", "only_here:", "timm:x"])
    def test_other_backbones_import_nothing(self, spec):
        with named_module_here(spec):
            for name in ("only_here", "timm_here"):
                with pytest.raises(ModuleNotFoundError):
                    __import__(name)

    def test_what_the_named_module_imports_must_be_installed(self, folder):
        (folder / "only_here.py").write_text("import helper_here\n")
        with (
            named_module_here("only_here:make"),
            pytest.raises(
                ns.UnknownNameError,
                match=r"No module named 'helper_here'\. Install helper_here, or add",
            ),
        ):
            load_backbone("only_here:make", image_size=8, mean=[0.5] * 3, std=[0.2] * 3)
        with pytest.raises(ns.UnknownNameError, match=r"No module named 'only_here'\."):
            load_backbone("only_here:make", image_size=8, mean=[0.5] * 3, std=[0.2] * 3)

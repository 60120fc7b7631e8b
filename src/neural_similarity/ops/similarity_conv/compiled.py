"""Builds and loads the compiled CPU operator.

The C++ sources in ``kernels/`` are compiled on first use, once per machine: calling the compiler
directly needs no build tool and no Python headers, and lets the operator use the vector
instructions of the processor it runs on, which a prebuilt library could not assume. The library is
kept in a cache directory under a name that changes with everything it depends on. It is loaded only
if nobody else could have written it, see :mod:`.trusted_files`.

Nothing here is needed for correct results: without a compiler, :func:`load` returns ``None`` and
the pure PyTorch path does the work.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from ..._io import cache_directory, scratch_folder
from .trusted_files import check_trusted, trusted_folder

__all__ = ["Kernels", "load"]

_ONE_AT_A_TIME = threading.Lock()
_LOGGER = logging.getLogger("neural_similarity")
_SOURCES = Path(__file__).with_name("kernels")
_COMPILERS = ("c++", "g++", "clang++")

#: The vector instructions that go with what PyTorch reports for this processor. The macros select
#: PyTorch's own vector types; they must agree with the instructions, hence one table.
_ISA_FLAGS: dict[str, tuple[str, ...]] = {
    "AVX512": (
        *("-mavx512f", "-mavx512dq", "-mavx512vl", "-mavx512bw", "-mavx2", "-mfma", "-mf16c"),
        *("-DCPU_CAPABILITY=AVX512", "-DCPU_CAPABILITY_AVX512"),
    ),
    "AVX2": (
        *("-mavx2", "-mfma", "-mf16c"),
        *("-DCPU_CAPABILITY=AVX2", "-DCPU_CAPABILITY_AVX2"),
    ),
}
_DEFAULT_FLAGS = ("-DCPU_CAPABILITY=DEFAULT", "-DCPU_CAPABILITY_DEFAULT")


@dataclass(frozen=True)
class Kernels:
    """The functions of the compiled library, float32 and float64, on the CPU.

    ``predictor_forward`` and ``predictor_backward`` belong to ``ops/sphere_predictor.py``, those
    with the prefix ``factored`` to ``ops/factored_similarity.py``, with ``image`` to
    ``ops/image_similarity.py``, with ``episode`` to ``ops/episode_chain.py``, and the other four to
    ``ops/folded_predictor.py``.
    """

    forward: Callable[..., Any]
    backward: Callable[..., Any]
    factored_forward: Callable[..., Any]
    factored_backward: Callable[..., Any]
    predictor_forward: Callable[..., Any]
    predictor_backward: Callable[..., Any]
    image_predictor_forward: Callable[..., Any]
    image_predictor_backward: Callable[..., Any]
    predictor_kernels: Callable[..., Any]
    predictor_inference: Callable[..., Any]
    layer_inference: Callable[..., Any]
    unchanged: Callable[..., Any]
    episode_features: Callable[..., Any]
    episode_gradients: Callable[..., Any]


def load() -> Kernels | None:
    """The compiled operator, built if necessary, or ``None`` if it is turned off or unavailable.

    ``NEURAL_SIMILARITY_COMPILED=0`` turns it off. A failure gives a single warning, because it
    costs speed, never correctness. There is no second attempt in this process.
    """
    with _ONE_AT_A_TIME:
        return _load()


@functools.cache
def _load() -> Kernels | None:
    switch = os.environ.get("NEURAL_SIMILARITY_COMPILED", "1").lower()
    if switch in ("0", "false", "off", "no") or not _worthwhile():
        return None
    try:
        _load_library()
        operators = torch.ops.neural_similarity_cpu
        names = (field.name for field in fields(Kernels))
        return Kernels(**{name: getattr(operators, name).default for name in names})
    except Exception as error:  # however a compiler or a loader fails, there is another path
        warnings.warn(
            f"neural_similarity: the compiled operators are not available, so the slower pure "
            f"PyTorch path is used (NEURAL_SIMILARITY_COMPILED=0 silences this): {_reason(error)}",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _worthwhile() -> bool:
    """Whether PyTorch has vector types for this processor; emulated ones lose to the pure path."""
    capability = torch.backends.cpu.get_cpu_capability()
    return capability in _ISA_FLAGS or platform.machine() not in ("x86_64", "AMD64")


def _load_library() -> None:
    """Load the library. One that cannot be loaded is built again, unless a new one failed too."""
    path, flags = _path(), _flags()
    failure_mark = path.with_suffix(".failed")
    load: Any = torch.ops.load_library  # carries no types
    if _is_whole(path):
        try:
            load(str(path))
        except OSError:
            if failure_mark.exists():  # or every process would spend its time building
                raise
        else:
            return
    _build(path, flags)
    failure_mark.touch()
    load(str(path))
    failure_mark.unlink(missing_ok=True)  # another process may have built it at the same time


def _path() -> Path:
    """Where the library for this source, PyTorch and processor is, or will be."""
    key = hashlib.sha256()
    sources = (file.read_text() for file in sorted(_SOURCES.iterdir()))
    for part in (*sources, torch.__version__, platform.machine(), *_flags()):
        key.update(part.encode() + b"\0")
    return trusted_folder(cache_directory()) / f"kernels-{key.hexdigest()[:20]}.so"


def _is_whole(path: Path) -> bool:
    """Whether the library is there and intact: loading a damaged one would crash the process."""
    digest = path.with_suffix(".sha256")
    if not (path.exists() and digest.exists()):
        return False
    check_trusted(path)
    check_trusted(digest)
    return digest.read_text() == hashlib.sha256(path.read_bytes()).hexdigest()


def _flags() -> tuple[str, ...]:
    """Compiler flags, among them the vector instructions PyTorch itself chose at run time."""
    isa = _ISA_FLAGS.get(torch.backends.cpu.get_cpu_capability(), _DEFAULT_FLAGS)
    # PyTorch's parallel loops are inline code written with OpenMP. Linked like this they run in
    # the OpenMP library PyTorch has loaded already, on the same threads.
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    return ("-std=c++20", "-O3", "-fPIC", "-fopenmp", abi, *isa)


def _build(path: Path, flags: tuple[str, ...]) -> None:
    """Compile into a temporary directory, then move into place.

    The move is atomic, so processes that build at the same time only repeat the work, and none
    ever loads half a library.
    """
    # Slow to import, and not needed once the library is in the cache.
    from torch.utils.cpp_extension import include_paths, library_paths

    compiler = _compiler()
    _LOGGER.warning(
        "neural_similarity: building the compiled operators; this happens once and takes up to a "
        "minute (%s)",
        path,
    )
    with scratch_folder(path.parent) as scratch:
        library = scratch / path.name
        objects = {source: scratch / f"{source.stem}.o" for source in _SOURCES.glob("*.cpp")}
        call = [*compiler, *flags, *(f"-I{directory}" for directory in include_paths())]
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for a compiler
            calls = [[*call, "-c", str(source), "-o", str(to)] for source, to in objects.items()]
            list(pool.map(_run, calls))
        libraries = [*(f"-L{directory}" for directory in library_paths()), "-ltorch_cpu", "-lc10"]
        files = sorted(map(str, objects.values()))
        _run([*compiler, *flags, "-shared", *files, "-o", str(library), *libraries])
        digest = library.with_suffix(".sha256")
        digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        for file in (library, digest):  # whatever the umask allows
            file.chmod(file.stat().st_mode & ~0o022)
        library.replace(path)
        digest.replace(path.with_suffix(".sha256"))


def _run(command: list[str]) -> None:
    subprocess.run(
        command, check=True, capture_output=True, text=True, errors="replace", timeout=600
    )


def _compiler() -> list[str]:
    """The command of the C++ compiler: ``$CXX``, which may include arguments, or a usual name."""
    chosen = os.environ.get("CXX", "").split()
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    raise OSError(f"no C++ compiler found ({chosen or ', '.join(_COMPILERS)})")


def _reason(error: Exception) -> str:
    """A short account of a failure; for a failed compilation, its first error."""
    if isinstance(error, subprocess.CalledProcessError):
        lines = str(error.stderr).strip().splitlines()
        return next((line for line in lines if "error" in line), "the compiler failed")
    return str(error)

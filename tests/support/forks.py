"""Commands stopped at any step, in children of a process that has already imported everything.

Starting Python with torch takes seconds. So one process imports it once and forks a child for each
command. The child counts its steps and sends itself a signal at one of them: at a change on
disk, at a line of the code that swaps and writes, or after some CPU time. Nothing waits for a fixed
time, so a step is the same step on a busy machine.
"""

import atexit
import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

MODULES = (
    "matplotlib.figure", "matplotlib.backends.backend_agg", "rich.progress", "rich.table",
    "torch._dynamo", "sklearn.datasets", "experiments.reproduce", "neural_similarity.cli.app",
    "neural_similarity.plot", "neural_similarity.cli.shared.adapt_result",
    "neural_similarity.cli.shared.train_report", "neural_similarity.cli.shared.fewshot_report",
    "neural_similarity.export.torch_export", "attacks.kills", "attacks.swaps", "support.worlds",
)  # fmt: skip
"""What the commands and tests import, so that no child has to."""

_CHANGES = {
    "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.truncate", "os.chmod",
    "fcntl.flock", "ctypes.dlsym",
}  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_LONGEST = 240  # seconds, after which a command counts as hanging


@dataclass(frozen=True)
class Stop:
    """When a command is stopped, and how: ``at`` is "change", "line" or "cpu" (seconds).

    Step 0 is never reached: the steps are only counted.
    """

    at: str = "change"
    step: float = 0
    signal: int = signal.SIGKILL


_COUNT = Stop()


@dataclass(frozen=True)
class Ended:
    """How a command ended, and how many steps it took; a negative code is a signal."""

    code: int
    out: str
    err: str
    steps: dict[str, float]


class Forks:
    """The client of the process that forks; use it as a context manager.

    Args:
        folder: for what the commands print.
    """

    def __init__(self, folder: Path) -> None:
        self._log = folder / "log"
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.forks", *MODULES], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, start_new_session=True,
            env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip

    def __enter__(self) -> "Forks":
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def run(self, code: str, *arguments: object, cwd: Path, setup=None) -> Ended:
        """A program in a child, as ``python -c`` runs it."""
        return self.call("support.forks:run_here", code, *arguments, cwd=cwd, setup=setup)

    def nsl(self, *arguments: object, cwd: Path, stop: Stop = _COUNT, setup=None) -> Ended:
        """The command in a child."""
        return self.call("support.forks:nsl_here", *arguments, cwd=cwd, stop=stop, setup=setup)

    def call(
        self, function: str, *arguments: object, cwd: Path, stop: Stop = _COUNT, setup=None
    ) -> Ended:
        """``module:function`` in a child, after ``setup``, another one with its arguments."""
        for suffix in (".out", ".err", ".steps"):
            self._log.with_suffix(suffix).write_text("{}" if suffix == ".steps" else "")
        job = {
            "function": function, "arguments": list(map(str, arguments)), "cwd": str(cwd),
            "stop": asdict(stop), "log": str(self._log), "setup": setup,
        }  # fmt: skip
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            assert selector.select(_LONGEST), f"{function} {arguments} hangs"
        code = int(self._process.stdout.readline())
        out, err, steps = (
            self._log.with_suffix(suffix).read_text() for suffix in (".out", ".err", ".steps")
        )
        return Ended(code, out, err, json.loads(steps))


def nsl_here(*arguments: str) -> None:
    """``nsl`` in this process."""
    sys.argv = ["nsl", *arguments]
    function("neural_similarity.cli:main")()


def run_here(code: str, *arguments: str) -> None:
    """A program in this process."""
    sys.argv = ["-c", *arguments]
    exec(compile(code, "-c", "exec"), {"__name__": "__main__"})


def set_environment(*settings: str) -> None:
    """Variables as ``name=value``; a setup."""
    os.environ.update(setting.split("=", 1) for setting in settings)


def interrupt_at(file: str, lines: int, number: int = signal.SIGINT) -> None:
    """Send a signal once a file has ``lines`` lines; a setup."""

    def wait() -> None:
        while not Path(file).exists() or len(Path(file).read_bytes().splitlines()) < lines:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    threading.Thread(target=wait, daemon=True).start()


def function(name: str):
    """What ``module:function`` names."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def serve() -> None:
    """Fork a child for each line of input; print how it ended."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _run(json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


class _Steps:
    """Counts the steps of this process; at one of them, it gets a signal."""

    def __init__(self, stop: dict, folder: str) -> None:
        self.counts = {"change": 0, "line": 0}
        self._stop, self._folder, self._active = stop, folder, True
        if stop["at"] == "change":
            sys.addaudithook(self._audit)
        elif stop["at"] == "line":
            sys.settrace(self._trace)
        elif stop["at"] == "cpu":
            signal.setitimer(signal.ITIMER_PROF, stop["step"])  # by default, its signal kills

    def end(self) -> dict:
        self._active = False
        sys.settrace(None)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return {**self.counts, "cpu": time.process_time()}

    def _count(self, at: str) -> None:
        self.counts[at] += 1
        if self.counts[at] == self._stop["step"]:
            os.kill(os.getpid(), self._stop["signal"])

    def _audit(self, event: str, arguments: tuple) -> None:
        if not self._active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int) or not (flags or 0) & _WRITES:
                return
        elif event == "ctypes.dlsym":
            path = "" if "renameat2" in arguments else "/"
        elif event in _CHANGES:
            path = "" if event == "fcntl.flock" else arguments[0]
        else:
            return
        path = path if isinstance(path, int) else os.fsdecode(path)
        if isinstance(path, int) or not path.startswith("/") or path.startswith(self._folder):
            self._count("change")

    def _trace(self, frame, event, argument):
        if not self._active or "/neural_similarity/_io/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self._count("line")
        return self._trace


def _run(job: dict) -> None:
    """A job in this process, which ends with it."""
    code = 1
    try:
        for number, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(job["log"] + suffix, os.O_WRONLY | os.O_APPEND), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(job["cwd"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if job["setup"]:
            function(job["setup"][0])(*job["setup"][1:])
        wanted = function(job["function"])
        steps = _Steps(job["stop"], job["cwd"])
        try:
            wanted(*job["arguments"])
            code = 0
        finally:
            Path(job["log"] + ".steps").write_text(json.dumps(steps.end()))
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        atexit._run_exitfuncs()
        os._exit(code)


if __name__ == "__main__":
    serve()

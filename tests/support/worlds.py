"""Two cooperating processes, as torchrun starts them, but forked: see ``forks.py``."""

import os
import signal
import sys
import traceback

import torch.distributed as dist

from support.forks import function


def pair(name: str, *arguments: str) -> None:
    """``module:function`` in two children of this process; for ``Forks.call``.

    This process has the store where they meet, as torchrun does, so that no port has to be guessed.
    The store has a thread, and a child forked while a thread runs may inherit a lock that is never
    released. So the children are forked first, and read the port from a pipe.
    """
    port, end = os.pipe()
    children = [_start(name, arguments, rank, port, end) for rank in range(2)]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(end, len(children) * f"{store.port:5}".encode())
    sys.exit(_wait(children))


def _wait(children: list[int]) -> int:
    """The first code that is not 0. If a child fails, the others, which would wait, are killed."""
    failed = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        code = os.waitstatus_to_exitcode(status)
        if code and not failed:
            failed = code
            for other in children:
                os.kill(other, signal.SIGKILL)
    return failed


def _start(name: str, arguments: tuple[str, ...], rank: int, port: int, end: int) -> int:
    """The process of a rank."""
    if child := os.fork():
        return child
    code = 1
    try:
        os.close(end)  # so that the pipe ends if the parent fails
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(int(os.read(port, 5))),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
            "WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank),
        }  # fmt: skip
        function(name)(*arguments)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

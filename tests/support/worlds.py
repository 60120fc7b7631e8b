"""Two processes that work together, as torchrun starts them, but forked: see ``forks.py``."""

import os
import sys
import traceback

import torch.distributed as dist

from support.forks import function


def pair(name: str, *arguments: str) -> None:
    """``module:function`` in two children of this process; for ``Forks.call``.

    This process has the store where they meet, as torchrun has, so that no port has to be guessed.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
    }  # fmt: skip
    children = [_start(name, arguments, rank) for rank in range(2)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(next((code for code in codes if code), 0))


def _start(name: str, arguments: tuple[str, ...], rank: int) -> int:
    """The process of a rank."""
    if child := os.fork():
        return child
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    code = 1
    try:
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

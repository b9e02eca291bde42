"""Forks the processes of pytest-xdist from one that has imported all tests.

Each of them would do it for itself otherwise: 10 s of processor time and more, most of it for libraries. Each
gets a process that forks programs as well, which would take 6 s to load anew (`tests/zygote.py`).
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from execnet.gateway_io import popen_bootstrapline

from tests.collected_tests import Keeper, collected
from tests.forking import ForkServer, serve

WORKER = [sys.executable, "-u", "-c", popen_bootstrapline]


class LoadedWorkers(ForkServer):
    """The process that has collected the tests that `arguments` of pytest name, and forks the workers."""

    def __init__(self, arguments: Sequence[str]) -> None:
        super().__init__("tests.loaded_workers", is_worker, arguments)


def is_worker(args: Any, env: Mapping[str, str]) -> bool:
    """Whether this is how execnet starts a process on this machine."""
    return list(args) == WORKER and env is os.environ


def load(arguments: Sequence[str]) -> None:
    """Collect the tests. The workers collect them again if this fails, and say why.

    Hubs in the workers find all SQL compiled, as programs do that are forked. Nothing is captured: streams
    that modules remember as they are imported, as the MCP SDK does, stay open.
    """
    thresholds = gc.get_threshold()
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*arguments, "-n", "0", "--collect-only", "-q", "--capture", "no"], plugins=[Keeper()])
    if not collected:
        forget_test_modules()
    gc.set_threshold(*thresholds)  # as programs have them, which are forked from here
    del sys.modules["dbos"]  # the tests have none, but programs have: tests/conftest.py
    from tests import zygote  # late: pytest complains about plugins that it did not import

    zygote.load()


def forget_test_modules() -> None:
    """Let workers import all test modules anew.

    pytest leaves a module that could not be imported in `sys.modules`, and takes it from there the next time
    as one without tests: no worker would say that it is broken.
    """
    for name in [name for name in sys.modules if name.rpartition(".")[2].startswith("test_")]:
        if name.startswith("tests."):
            del sys.modules[name]


def fork_program_server(fds: Sequence[int]) -> None:
    """Give this process, which becomes a worker, a child that forks programs. Returns in those as well.

    It is forked before the worker has done anything: what it has loaded is what this process has.
    """
    from tests import zygote  # late: as above

    channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid:
        theirs.close()
        zygote.loaded_server = (channel, pid)
        return
    channel.close()
    for number in fds:  # of the worker, whose end must be seen
        os.close(number)
    serve(theirs)


if __name__ == "__main__":
    load(sys.argv[2:])
    serve(socket.socket(fileno=int(sys.argv[1])), fork_program_server)

"""Forks the test processes of `pytest -n` from one that has already collected all tests.

Each of them would import all test modules and collect 13,000 tests for itself otherwise: 14 s of processor
time. xdist starts them as ever; instead of a new Python it gets a fork, which reports to it what it expects
of a new one. Where tests cannot be collected at all, xdist gets new ones, which find the same error.
"""

from __future__ import annotations

import json
import os
import queue
import random
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import execnet
import pytest
from execnet.gateway_base import get_execmodel
from execnet.gateway_io import popen_bootstrapline
from xdist import remote

from tests.zygote import Zygote, become, fork_at_requests, has_same_settings, leave

# What the process that forks runs. It has its configuration before xdist is imported: pytest refuses to
# rewrite the assertions of a plugin that is already there.
CODE = """
import json, os, sys
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
from _pytest.config import _prepareconfig
sys.path[:] = json.loads(sys.argv[1])
config = _prepareconfig(json.loads(sys.argv[2]))
from tests.forked_workers import collect_and_fork
collect_and_fork(config, int(sys.argv[3]))
"""
REMOTE = "from tests.forked_workers import work\nwork(channel)"  # what xdist has each of them run


class ForkedWorkers:
    """Registered where xdist starts the workers: lets it fork them."""

    def __init__(self, config: pytest.Config) -> None:
        arguments = [str(each) for each in config.invocation_params.args]
        command = [sys.executable, "-c", CODE, json.dumps(sys.path), json.dumps(arguments)]
        self.zygote = Zygote(command, is_worker)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_getremotemodule(self) -> str | None:
        return REMOTE if self.zygote.is_running() else None


def is_worker(args: Any, env: Mapping[str, str]) -> bool:
    """Whether this is a Python that xdist starts."""
    return list(args) == [sys.executable, "-u", "-c", popen_bootstrapline] and has_same_settings(env)


class Recorder:
    """In place of the channel to xdist, as long as there is none: keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.gateway = self
        self.execmodel = get_execmodel("main_thread_only")

    def send(self, message: object) -> None:
        self.sent.append(message)


class Workers:
    """A plugin of the process that forks, and of its forks."""

    def __init__(self, config: pytest.Config, requests: socket.socket) -> None:
        self._config = config
        self._requests = requests
        self._recorder = Recorder()
        self._interactor = remote.WorkerInteractor(config, self._recorder)
        vars(remote)["interactor"] = self._interactor  # where it looks for itself at an internal error
        self._channels: queue.SimpleQueue[execnet.Channel] = queue.SimpleQueue()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Fork where tests would run, and return in each of the forks, to run some of them."""
        capture = self._config.pluginmanager.getplugin("capturemanager")
        assert capture is not None
        capture.stop_global_capturing()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        assert threading.active_count() == 1, "only a process of one thread can be forked"
        request, fds = fork_at_requests(self._requests)
        become(request, fds)
        random.seed()
        self._thread = threading.Thread(target=self._serve, args=[request["args"][-1]], daemon=True)
        self._thread.start()
        self._adopt(self._channels.get())
        capture.start_global_capturing()
        capture.suspend_global_capture()

    def work(self, channel: execnet.Channel) -> None:
        """Let the tests use the channel, until they are done."""
        self._channels.put(channel)
        self._done.wait()

    def finish(self) -> None:
        """Wait for xdist to close the connection."""
        self._done.set()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._thread is not None:
            self._thread.join()

    def _serve(self, code: str) -> None:
        """Do what a new Python does at the start for xdist: read from stdin what to run."""
        exec(code, {"__name__": "__main__"})

    def _adopt(self, channel: execnet.Channel) -> None:
        """Become the worker that xdist describes, as its own module for workers does."""
        workerinput, _, options, _ = channel.receive()
        os.environ["PYTEST_XDIST_TESTRUNUID"] = workerinput["testrunuid"]
        os.environ["PYTEST_XDIST_WORKER"] = workerinput["workerid"]
        os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(workerinput["workercount"])
        vars(self._config)["workerinput"].update(workerinput)
        self._config.option.basetemp = options["basetemp"]
        vars(self._config)["_tmp_path_factory"]._given_basetemp = Path(options["basetemp"])
        self._interactor.workerid = workerinput["workerid"]
        self._interactor.testrunuid = workerinput["testrunuid"]
        self._interactor.channel = channel
        for message in self._recorder.sent:
            channel.send(message)


_workers: list[Workers] = []


def work(channel: execnet.Channel) -> None:
    """Run in a fork by xdist, in a thread beside the tests."""
    _workers[0].work(channel)


def collect_and_fork(config: pytest.Config, channel: int) -> NoReturn:
    """Collect the tests, then fork a worker at each request that comes from this socket."""
    remote.setup_config(config, None)
    vars(config).update(workerinput={"testrunuid": ""}, workeroutput={})
    workers = Workers(config, socket.socket(fileno=channel))
    config.pluginmanager.register(workers)
    _workers.append(workers)
    config.hook.pytest_cmdline_main(config=config)
    workers.finish()
    leave(0)

"""The worker processes of `dragoman serve --workers N`: started, watched, replaced one by one on reload.

All accept connections on one listening socket, which the parent has opened. Each worker has two pipes: it
writes to `ready` when it serves, and it stops when the parent's end of `lifeline` closes, however the parent
has ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import typer

from dragoman.cli.terminal import print_note
from dragoman.errors import DragomanError

log = logging.getLogger(__name__)
FIRST_DELAY = 0.1  # seconds before a worker that has ended is started again
MAX_DELAY = 5.0
START_GRACE = 5.0  # seconds that a worker which is still starting gets to end when the program stops
STABLE_SECONDS = 10.0  # after which a worker's end does not count as one of a series of failed starts
EXIT_FORCED = 130
READY = b"1"


class WorkerSettings(NamedTuple):
    """What a worker gets from its parent: file descriptors, its number from 1 on, and whether it is the
    process that prints how the hub is set up.
    """

    listener: int
    ready: int
    lifeline: int
    number: int
    prints_setup: bool

    def __str__(self) -> str:
        return ",".join(str(int(value)) for value in self)

    @classmethod
    def parse(cls, text: str) -> WorkerSettings:
        """Return the settings in the hidden option `--worker`. Raises typer.BadParameter."""
        try:
            listener, ready, lifeline, number, prints_setup = map(int, text.split(","))
        except ValueError:
            raise typer.BadParameter(
                "only `dragoman serve --workers` uses it", param_hint="--worker"
            ) from None
        return cls(listener, ready, lifeline, number, bool(prints_setup))

    def open_listener(self) -> socket.socket:
        """Return the listening socket."""
        return socket.socket(fileno=self.listener)

    def report_ready(self, stop: Callable[[], None]) -> None:
        """Tell the parent that this worker serves, and call `stop` when the parent is gone."""
        os.write(self.ready, READY)
        os.close(self.ready)
        loop = asyncio.get_running_loop()

        def parent_ended() -> None:
            loop.remove_reader(self.lifeline)
            stop()

        loop.add_reader(self.lifeline, parent_ended)


class Worker:
    """A worker process."""

    def __init__(
        self, process: asyncio.subprocess.Process, *, number: int, ready: int, lifeline: int
    ) -> None:
        self.process = process
        self.number = number
        self.is_stopping = False
        self._ready = ready
        self._lifeline = lifeline
        self._started_at = asyncio.get_running_loop().time()

    @classmethod
    async def start(
        cls, command: Sequence[str], listener: socket.socket, *, number: int, prints_setup: bool
    ) -> Worker:
        """Start a process."""
        ready, ready_end = os.pipe()
        lifeline_end, lifeline = os.pipe()
        settings = WorkerSettings(listener.fileno(), ready_end, lifeline_end, number, prints_setup)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--worker",
                str(settings),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(listener.fileno(), ready_end, lifeline_end),
                start_new_session=True,  # Ctrl-C in a terminal reaches the parent only
            )
        except BaseException:
            os.close(ready)
            os.close(lifeline)
            raise
        finally:
            os.close(ready_end)
            os.close(lifeline_end)
        return cls(process, number=number, ready=ready, lifeline=lifeline)

    async def wait_ready(self) -> bool:
        """Wait, once, until it serves; return False when it ended before that."""
        try:
            return await wait_until_ready(self._ready) == READY
        finally:
            os.close(self._ready)

    @property
    def was_stable(self) -> bool:
        """Whether it has run for so long that its end is not one of a series of failed starts."""
        return asyncio.get_running_loop().time() - self._started_at >= STABLE_SECONDS

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send the process a signal to end; from now on its end is expected."""
        self.is_stopping = True
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def wait(self) -> int:
        """Wait for its end; return its exit code."""
        code = await self.process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return code


class WorkerPool:
    """The workers of a hub. `run` returns the exit code of the program."""

    def __init__(
        self,
        command: Sequence[str],
        listener: socket.socket,
        *,
        count: int,
        check_config: Callable[[], object],
    ) -> None:
        """`command` starts a worker, without its option `--worker`; `check_config` raises ConfigError."""
        self._check_config = check_config
        self._command = command
        self._listener = listener
        self._count = count
        self._workers: dict[int, Worker] = {}
        self._keepers: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        """Held while a worker starts: one that has just ended may also be about to be replaced."""
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()
        self._failure: int | None = None

    async def run(self, announce: Callable[[], None]) -> int:
        """Serve until a signal arrives. `announce` is called once all workers serve."""
        self._watch_signals()
        for number in range(1, self._count + 1):
            worker, is_ready = await self._start(number, prints_setup=number == 1)
            self._workers[number] = worker
            if self._stop.is_set():
                break
            if not is_ready:  # it has printed why
                self._failure = await worker.wait()
                self._stop.set()
                break
        for worker in self._workers.values():
            self._spawn_keeper(worker)
        if not self._stop.is_set():
            announce()
        reloading = asyncio.create_task(self._reload_on_request())
        await self._stop.wait()
        reloading.cancel()
        for worker in self._workers.values():
            worker.stop()
        await asyncio.gather(*self._keepers)
        return self._failure or 0

    async def _start(self, number: int, *, prints_setup: bool = False) -> tuple[Worker, bool]:
        """Start a worker and wait until it serves; False when it ended first, or the pool stops."""
        worker = await Worker.start(self._command, self._listener, number=number, prints_setup=prints_setup)
        ready, stop = asyncio.ensure_future(worker.wait_ready()), asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait((ready, stop), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                worker.stop()
                await asyncio.wait((ready,), timeout=START_GRACE)
            if not ready.done():  # it does not react to signals
                worker.stop(signal.SIGKILL)
            return worker, await ready
        except BaseException:
            worker.stop(signal.SIGKILL)
            raise
        finally:
            ready.cancel()
            stop.cancel()

    def _spawn_keeper(self, worker: Worker) -> None:
        keeper = asyncio.create_task(self._keep(worker))
        self._keepers.add(keeper)
        keeper.add_done_callback(self._keepers.discard)

    async def _keep(self, worker: Worker) -> None:
        """Start a worker again whenever it ends, until the pool stops or it is replaced."""
        delay = FIRST_DELAY
        while True:
            code = await worker.wait()
            if worker.is_stopping or self._stop.is_set():
                return
            delay = FIRST_DELAY if worker.was_stable else min(2 * delay, MAX_DELAY)
            log.error(
                "worker %d (pid %d) ended with %s; another one starts",
                worker.number,
                worker.process.pid,
                describe_exit(code),
            )
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), delay)
            async with self._starting:
                if self._stop.is_set() or self._workers[worker.number] is not worker:
                    return
                worker, _ = await self._start(worker.number)
                self._workers[worker.number] = worker
            if self._stop.is_set():
                worker.stop()

    async def _reload_on_request(self) -> None:
        while await self._reload.wait():
            self._reload.clear()
            try:
                await asyncio.to_thread(self._check_config)
            except DragomanError as error:
                log.error("the configuration was not reloaded: %s", error.message)
                continue
            for number in range(1, self._count + 1):
                if not await self._replace(number):
                    break
            else:
                log.warning("all %d workers run with the new configuration", self._count)

    async def _replace(self, number: int) -> bool:
        """Start a new process for a worker, then end the old one. False when the new one does not start."""
        async with self._starting:
            replacement, is_ready = await self._start(number)
            if not is_ready:
                await replacement.wait()
                if not self._stop.is_set():
                    log.error("the configuration was not reloaded: worker %d keeps the old one", number)
                return False
            old, self._workers[number] = self._workers[number], replacement
            self._spawn_keeper(replacement)
        old.stop()
        await old.wait()
        return True

    def _watch_signals(self) -> None:
        """The first SIGINT or SIGTERM stops, a second one kills the workers; SIGHUP reloads."""
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if self._stop.is_set():
                for worker in self._workers.values():
                    worker.stop(signal.SIGKILL)
                os._exit(EXIT_FORCED)
            print_note("shutting down: active answers get time to end; Ctrl-C again stops at once")
            self._stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)


async def wait_until_ready(pipe: int) -> bytes:
    """Return what a worker writes to its pipe; `b""` when it ended before it served."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def notice() -> None:
        loop.remove_reader(pipe)
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(pipe, notice)
    try:
        await readable
    finally:
        loop.remove_reader(pipe)
    return os.read(pipe, 1)


def describe_exit(code: int) -> str:
    """Describe the exit code of a process: `exit code 75`, or the signal that ended it, as `SIGKILL`."""
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


def worker_command(arguments: Sequence[str], *, found_file: Path | None) -> Sequence[str]:
    """Return the command of a worker: this program with the arguments that it was started with.

    A worker gets the path of the configuration file that the parent found. If it searched for one itself and
    the file were gone, it would start without a configuration.
    """
    named = () if found_file is None else ("--config", str(found_file))
    return [sys.executable, "-m", "dragoman", *arguments, *named]

"""The process of one plugin in its sandbox: started by a call, ended when it is idle or misbehaves."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from dragoman.errors import CallError, CallTimeout
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.processes.program import Program
from dragoman.tools.shell.command import ShellProgram
from dragoman.tools.shell.sandbox import HOME, Mount, Sandbox, SandboxLimits

HOST_TEXT = Path(__file__).with_name("plugin_host.py").read_text()
SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
LIMITS = SandboxLimits(memory=300_000_000, processes=16, file_size=1_000_000)
MAX_LINE = 1_000_000  # bytes of one answer
START_SECONDS = 20.0
CALL_SECONDS = 30.0
IDLE_SECONDS = 30.0
READ_SIZE = 65_536


class PluginAnswer(msgspec.Struct, frozen=True):
    """A line of the plugin's process."""

    id: int | None = None
    ready: bool = False
    result: Any = None
    error: str | None = None


answer_decoder = msgspec.json.Decoder(PluginAnswer)


class PluginCrashed(CallError):
    """The process of a plugin ended, or broke the protocol, in the middle of a call."""

    code = "plugin_crashed"


class PluginProcess:
    """Runs the calls of one plugin, one at a time. A new process keeps no state of the last one."""

    def __init__(self, source: str, sandbox: Sandbox) -> None:
        self._source = source
        self._sandbox = sandbox
        self._lock = asyncio.Lock()
        self._program: Program | None = None
        self._spec: ShellProgram | None = None
        self._buffer = bytearray()
        self._calls = 0
        self._has_ended = False
        self._idle: asyncio.TimerHandle | None = None
        self._stopping: set[asyncio.Task[None]] = set()

    async def call(self, input: Mapping[str, Any], *, seconds: float = CALL_SECONDS) -> Any:
        """Return what the plugin returns. Raises CallError, CallTimeout, PluginCrashed."""
        async with self._lock:
            if self._has_ended:
                raise CallError("The plugin was deactivated or replaced before this call began.")
            self._cancel_idle()
            is_done = False
            try:
                answer = await self._ask(input, seconds=seconds)
                is_done = True
            finally:
                if not is_done or self._has_ended:  # it may still be working on this call
                    await asyncio.shield(self._stop())
            if not self._has_ended:
                self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._stop_idle)
        if answer.error is not None:
            raise CallError(f"The plugin failed: {answer.error}")
        return answer.result

    async def end(self) -> None:
        """End the process, or let its present call do that. Calls that wait, and later ones, fail."""
        self._has_ended = True
        if not self._lock.locked():
            await self._close()

    async def close(self) -> None:
        """End the process, and wait for that."""
        self._has_ended = True
        await self._close()

    async def _close(self) -> None:
        self._cancel_idle()
        async with self._lock:
            await self._stop()

    async def _ask(self, input: Mapping[str, Any], *, seconds: float) -> PluginAnswer:
        if self._program is None:
            await self._start()
        self._calls += 1
        line = msgspec.json.encode({"id": self._calls, "input": input})
        try:
            async with asyncio.timeout(seconds):
                answer = await self._exchange(line)
        except TimeoutError:
            raise CallTimeout(f"The plugin took longer than {seconds:g} seconds.") from None
        if answer.id != self._calls:
            raise PluginCrashed("The plugin answered a call that nobody made.")
        return answer

    async def _start(self) -> None:
        await self._sandbox.check()
        python, mounts = find_python()
        arguments = [python, "-I", "-S", "-c", HOST_TEXT]
        self._spec = self._sandbox.program(arguments, mounts=mounts, limits=LIMITS)
        self._program = await Program.spawn(
            self._spec.arguments, cwd=self._spec.folder, environ={}, keeps_errors=False
        )
        self._buffer.clear()
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self._exchange(msgspec.json.encode({"source": self._source}))
        except TimeoutError:
            raise PluginCrashed("The plugin did not start in time.") from None
        if not answer.ready:
            raise PluginCrashed("The plugin answered before it was ready.")

    async def _exchange(self, line: bytes) -> PluginAnswer:
        """Send a line and return the next one. Raises PluginCrashed."""
        process = cast(Program, self._program).process
        stdin, stdout = cast(asyncio.StreamWriter, process.stdin), cast(asyncio.StreamReader, process.stdout)
        try:
            stdin.write(line + b"\n")
            await stdin.drain()
            end = self._buffer.find(b"\n")
            while end < 0:
                data = await stdout.read(READ_SIZE)
                begin = len(self._buffer)
                self._buffer += data
                if not data or len(self._buffer) > MAX_LINE:
                    raise PluginCrashed("The plugin ended, or answered too much.")
                end = self._buffer.find(b"\n", begin)  # what was read before is not searched again
            answer = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            return decode_json(answer, answer_decoder)
        except (OSError, RuntimeError, *DECODE_ERRORS):
            raise PluginCrashed("The plugin ended, or answered with something other than JSON.") from None

    async def _stop(self) -> None:
        program, self._program = self._program, None
        spec, self._spec = self._spec, None
        if program is not None:
            await program.stop(grace=0)
        if spec is not None and spec.on_end is not None:  # also where it could not be started
            spec.on_end()

    def _stop_idle(self) -> None:
        task = asyncio.ensure_future(self._close())
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def find_python() -> tuple[str, list[Mount]]:
    """Return the Python that plugins run in: the system's, else this one, with the folder that holds it."""
    for path in SYSTEM_PYTHONS:
        if Path(path).exists():
            return path, []
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return f"{HOME}/python/bin/{version}", [Mount("python", Path(sys.base_prefix))]

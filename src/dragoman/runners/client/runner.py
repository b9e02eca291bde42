"""A runner: a process that answers the prompts of sessions with an agent of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeAlias

import msgspec
from websockets.asyncio.client import ClientConnection

from dragoman.errors import Conflict, DragomanError, WireError
from dragoman.http.reconnecting_websocket import (
    ReconnectingClient,
    error_from_code,
    exchange_hello,
    run_until_one_ends,
)
from dragoman.http.websocket_client import open_websocket, websocket_url
from dragoman.redaction import safe_line
from dragoman.runners.client.turn import RunnerTurn
from dragoman.wire.runner.frames import (
    PATH,
    FrameError,
    FrameToRunner,
    FrameToTurn,
    RunnerAbort,
    RunnerAck,
    RunnerAnswer,
    RunnerBye,
    RunnerFrame,
    RunnerHello,
    RunnerJoin,
    RunnerLeave,
    RunnerPing,
    RunnerPong,
    RunnerPrompt,
    RunnerRefused,
    RunnerSteer,
    RunnerWelcome,
    SessionState,
    TurnComplete,
    decode_from_hub,
    encode_runner_frame,
)

log = logging.getLogger(__name__)

AnswerFunction: TypeAlias = Callable[[RunnerTurn], Awaitable[None]]
SCOPE = "runner"
NORMAL_CLOSURE, GOING_AWAY = 1000, 1001
HEARTBEAT_SECONDS = 10.0
TIMEOUT_SECONDS = 30.0
CLOSED = "the runner is closed"
CLOSE_SECONDS = 5.0  # that `close` waits until the hub has acknowledged the ends of turns


class RunnerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a runner: `turns` answered at a time, `buffer` characters of a turn that wait for the hub."""

    turns: int = 8
    buffer: int = 1_000_000


DEFAULT_SETTINGS = RunnerSettings()


class Runner(ReconnectingClient):
    """Answers the prompts of sessions of a hub. It reconnects as often as needed.

        async def answer(turn: RunnerTurn) -> None:
            await turn.write_text(f"You said: {turn.text}")

        async with Runner(answer, hub="http://127.0.0.1:8000", key=key, sessions=["s1"]):
            ...

    or `await Runner(...).run()`, which serves until close(). The turn ends when `answer` returns; an
    exception that it raises is the turn's error. When the turn is aborted, `answer` is cancelled. Frames
    that the hub has not acknowledged are sent again after a reconnection.
    """

    def __init__(
        self,
        answer: AnswerFunction,
        *,
        hub: str,
        key: str | None = None,
        sessions: Iterable[str] = (),
        settings: RunnerSettings = DEFAULT_SETTINGS,
    ) -> None:
        super().__init__(websocket_url(hub, PATH))
        self.refused: Mapping[str, FrameError] = {}
        """The sessions that the hub does not let this runner serve, and why."""
        self._answer = answer
        self._key = key or None
        self._sessions = dict.fromkeys(sessions)
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.turns)
        self._turns: dict[str, RunnerTurn] = {}  # by id, until the hub has acknowledged their end
        self._tasks: dict[str, asyncio.Task[None]] = {}  # of turns that are being answered
        self._connection: RunnerConnection | None = None
        self._joined: dict[str, asyncio.Future[None]] = {}

    def __repr__(self) -> str:
        return f"Runner({self.url!r}, sessions={list(self._sessions)!r})"

    async def join(self, session_id: str) -> None:
        """Serve another session; return when the hub has accepted it.

        Raises the hub's refusal, and Conflict if the runner closes before that.
        """
        if self._closing.is_set():
            raise Conflict(CLOSED)
        self._sessions[session_id] = None
        future = self._joined.setdefault(session_id, asyncio.get_running_loop().create_future())
        if self._connection is not None:
            self._connection.send(RunnerJoin(sessions=(session_id,)))
        await asyncio.shield(future)

    def leave(self, session_id: str) -> None:
        """Stop serving a session; its turn is cancelled."""
        self._sessions.pop(session_id, None)
        for turn in [turn for turn in self._turns.values() if turn.session_id == session_id]:
            self._abort(turn.turn_id)
        if self._connection is not None:
            self._connection.send(RunnerLeave(sessions=(session_id,)))

    async def run(self) -> None:
        """See `ReconnectingClient.run`."""
        try:
            await self._reconnect_until_closed(self._run_connection)
        finally:
            await self._stop_tasks()
            joined, self._joined = self._joined, {}
            for future in joined.values():
                future.set_exception(Conflict(CLOSED))
                future.exception()  # nobody may wait for it any more

    async def _run_connection(self) -> None:
        socket = await open_websocket(self.url, self._key, scope=SCOPE)
        connection = RunnerConnection(
            socket, turns=self._turns, handle=self._handle, on_sent=self._forget_if_over
        )
        try:
            hello = RunnerHello(sessions=tuple(self._sessions), turns=tuple(self._turns))
            welcome = await handshake(socket, hello)
            self._connection = connection
            connection.window = welcome.window
            connection.frame_limit = welcome.frame
            self._resume_turns(welcome)
            self._take_welcome(welcome)
            end = partial(self._end_turns, connection)
            await self._serve_until_closed(connection.run(), end=end)
        finally:
            self._connection = None
            await socket.close(NORMAL_CLOSURE if self._closing.is_set() else GOING_AWAY)
        if connection.bye is not None and not connection.bye.again:
            raise refusal(connection.bye.code, f"the hub closed the connection: {connection.bye.message}")

    async def _end_turns(self, connection: RunnerConnection) -> None:
        await self._stop_tasks()
        await connection.drain(CLOSE_SECONDS)

    def _resume_turns(self, welcome: RunnerWelcome) -> None:
        """Continue the turns that are still open at the hub, and abandon those that it has closed."""
        states = {state.turn_id: state for state in welcome.sessions if state.turn_id is not None}
        for turn in list(self._turns.values()):
            turn.frame_limit = welcome.frame
            state = states.get(turn.turn_id)
            if state is None:
                self._abandon(turn)
            else:
                turn.reconnect(state.seq)

    def _take_welcome(self, welcome: RunnerWelcome) -> None:
        """Record which sessions are served. On the first connection, raise the refusal of all of them."""
        refused = {refusal.session_id: refusal.error for refusal in welcome.refused}
        self.refused = {
            **{id: error for id, error in self.refused.items() if id in self._sessions},
            **refused,
        }
        for id, error in refused.items():
            log.warning("the hub refuses session %s: %s", id, error.message)
            self._sessions.pop(id, None)
            if id in self._joined:
                self._joined.pop(id).set_exception(refusal(error.code, error.message))
        for state in welcome.sessions:
            self._note_joined(state)
        if refused and not self._sessions and not self._ready.is_set():
            first = next(iter(refused.values()))
            raise refusal(first.code, first.message)
        self._ready.set()

    def _note_joined(self, state: SessionState) -> None:
        future = self._joined.pop(state.session_id, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _handle(self, frame: FrameToRunner) -> None:
        match frame:
            case RunnerPrompt():
                self._start(frame)
            case RunnerAbort() | RunnerSteer() | RunnerAnswer() | RunnerAck():
                turn = self._turns.get(frame.turn_id)
                if turn is not None:
                    self._handle_turn_frame(turn, frame)
            case RunnerWelcome():
                self._take_welcome(frame)
            case RunnerRefused():
                self._take_refusal(frame)
            case RunnerPong() | RunnerBye():
                pass  # the connection's own

    def _handle_turn_frame(self, turn: RunnerTurn, frame: FrameToTurn) -> None:
        match frame:
            case RunnerSteer():
                turn.steered.set()
            case RunnerAbort():
                turn.aborted = True
                self._abort(turn.turn_id)
            case RunnerAnswer():
                turn.answer(frame)
            case RunnerAck(seq=seq):
                turn.acknowledge(seq)
                self._forget_if_over(turn.turn_id)
                self._wake()

    def _start(self, prompt: RunnerPrompt) -> None:
        if prompt.turn_id in self._turns or self._closing.is_set():
            return
        turn = RunnerTurn(prompt, buffer=self._settings.buffer, on_frame=self._wake)
        if self._connection is not None:
            turn.frame_limit = self._connection.frame_limit
        self._turns[turn.turn_id] = turn
        task = asyncio.create_task(self._run_turn(turn), name=f"runner turn {turn.turn_id}")
        self._tasks[turn.turn_id] = task
        task.add_done_callback(partial(self._end_turn, turn))

    async def _run_turn(self, turn: RunnerTurn) -> None:
        await turn.begin()
        async with self._slots:
            await self._answer(turn)

    def _end_turn(self, turn: RunnerTurn, task: asyncio.Task[None]) -> None:
        self._tasks.pop(turn.turn_id, None)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            turn.finalize("canceled")
        elif error is None:
            turn.finalize("end_turn")
        else:
            expected = isinstance(error, DragomanError)
            text = error.message if isinstance(error, DragomanError) else f"{type(error).__name__}: {error}"
            log.warning("turn %s failed: %s", turn.turn_id, text, exc_info=None if expected else error)
            turn.finalize("error", safe_line(text))
        self._forget_if_over(turn.turn_id)

    def _abort(self, turn_id: str) -> None:
        task = self._tasks.get(turn_id)
        if task is not None:
            task.cancel()

    def _abandon(self, turn: RunnerTurn) -> None:
        turn.abandon()
        self._abort(turn.turn_id)
        self._turns.pop(turn.turn_id, None)

    def _take_refusal(self, frame: RunnerRefused) -> None:
        log.warning("the hub refused a frame: %s", frame.error.message)
        turn = self._turns.get(frame.turn_id or "")
        if turn is not None and turn.ended:  # the hub has closed it and will acknowledge nothing more
            self._abandon(turn)

    def _forget_if_over(self, turn_id: str) -> None:
        turn = self._turns.get(turn_id)
        if turn is not None and turn.is_over and turn_id not in self._tasks:
            del self._turns[turn_id]
            if self._connection is not None:
                self._connection.send(TurnComplete(session_id=turn.session_id, turn_id=turn_id))

    async def _stop_tasks(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _wake(self) -> None:
        if self._connection is not None:
            self._connection.wake()


class RunnerConnection:
    """One connection after its handshake: sends the frames of turns in order, within the hub's window."""

    def __init__(
        self,
        socket: ClientConnection,
        *,
        turns: Mapping[str, RunnerTurn],
        handle: Callable[[FrameToRunner], None],
        on_sent: Callable[[str], None],
    ) -> None:
        self.bye: RunnerBye | None = None
        self.window = 0
        self.frame_limit = 0
        self._socket = socket
        self._turns = turns
        self._handle = handle
        self._on_sent = on_sent
        self._control: list[RunnerFrame] = []
        self._wakeup = asyncio.Event()
        self._idle = asyncio.Event()
        self._last_frame_at = asyncio.get_running_loop().time()

    def send(self, frame: RunnerFrame) -> None:
        """Send a frame that belongs to no turn, before the others."""
        self._control.append(frame)
        self.wake()

    def wake(self) -> None:
        """Make the writer look for frames to send."""
        self._wakeup.set()

    async def run(self) -> None:
        """Serve until the connection ends."""
        await run_until_one_ends(self._read(), self._write(), self._heartbeat())

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` until the hub has acknowledged the turns that have ended."""
        try:
            async with asyncio.timeout(seconds):
                while self._turns:
                    self._idle.clear()
                    self.wake()
                    await self._idle.wait()
        except TimeoutError:
            log.info("the hub did not acknowledge the ends of %d turns", len(self._turns))

    async def _read(self) -> None:
        try:
            async for text in self._socket:
                self._last_frame_at = asyncio.get_running_loop().time()
                frame = decode_from_hub(text)
                if isinstance(frame, RunnerBye):
                    self.bye = frame
                self._handle(frame)
                self._idle.set()
        except WireError as error:
            log.warning("the hub sent an invalid frame: %s", error.message)

    async def _write(self) -> None:
        while True:
            self._wakeup.clear()
            while self._control:
                await self._socket.send(encode_runner_frame(self._control.pop(0)))
            if not await self._send_round():
                await self._wakeup.wait()

    async def _send_round(self) -> bool:
        """Send one frame of each turn that has one, within the window; return whether to continue."""
        has_sent = False
        for turn in list(self._turns.values()):
            if self._pending() >= self.window:
                return False
            text = turn.next_frame()
            if text is not None:
                has_sent = True
                await self._socket.send(text)
                self._on_sent(turn.turn_id)
        return has_sent

    def _pending(self) -> int:
        return sum(turn.unacknowledged for turn in self._turns.values())

    async def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        number = 0
        while self._last_frame_at + TIMEOUT_SECONDS > loop.time():
            number += 1
            self.send(RunnerPing(n=number))
            await asyncio.sleep(HEARTBEAT_SECONDS)
        log.warning("the hub has not answered for %g seconds", TIMEOUT_SECONDS)


async def handshake(socket: ClientConnection, hello: RunnerHello) -> RunnerWelcome:
    """Send the hello. Return the hub's welcome, or raise its refusal."""
    match await exchange_hello(socket, encode_runner_frame(hello), decode=decode_from_hub):
        case RunnerWelcome() as welcome:
            return welcome
        case RunnerRefused(error=error):
            raise refusal(error.code, error.message)
        case _:
            raise WireError("the server at this address does not speak the runner protocol")


def refusal(code: str, message: str) -> DragomanError:
    """Return the error for a hub's refusal of this runner."""
    return error_from_code(code, message, scope=SCOPE)

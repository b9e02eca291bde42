"""Settings of the hub's side of the runner protocol: times, sizes, counts."""

from __future__ import annotations

import msgspec


class RunnerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a hub sets for its runners. Times are in seconds.

    `grace`: how long a turn waits for a runner that is away; `idle`: how long for the next frame of one that
    is connected; `stop_timeout`: how long for it to finalize a turn that is stopped. `pause_after`: how long
    a runner that has asked a question sends nothing before the run ends; the turn continues with the answer.
    `hello_timeout`: how long to wait for the first frame; `recheck`: time between two checks of the key.

    `frame`: bytes of a message; `window`: characters of frames that the hub accepts ahead of their run;
    `rate`: frames a second, above which a runner is read more slowly. `bad_frames`: frames in a minute that
    cannot be used, above which the connection is closed. `sessions`: of one connection; `owner_connections`:
    connections of an owner; `max_unauthenticated`: connections that have sent neither a key nor a hello yet.
    `outbox`: characters that wait to be sent. `answer`: characters of calls and data in an answer; those of
    its text are counted by the run. `question_seconds`: when a question that nobody answers expires.
    `origins`: of pages that may connect.
    """

    grace: float = 60.0
    idle: float = 3600.0
    stop_timeout: float = 5.0
    pause_after: float = 1.0
    hello_timeout: float = 10.0
    recheck: float = 10.0
    frame: int = 4_000_000
    window: int = 1_000_000
    rate: float = 2_000.0
    bad_frames: int = 100
    sessions: int = 1_000
    owner_connections: int = 200
    max_unauthenticated: int = 64
    outbox: int = 32_000_000
    answer: int = 64_000_000
    question_seconds: float = 86_400.0
    origins: tuple[str, ...] = ()

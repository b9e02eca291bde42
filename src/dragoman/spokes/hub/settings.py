"""Settings of the hub's side of the spoke protocol: times, sizes, counts."""

from __future__ import annotations

import msgspec


class SpokeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a hub sets for its spokes. Times are in seconds, sizes in bytes.

    `grace`: how long a spoke that went away may take to come back; `claim_timeout`: how long one call that
    must not be repeated is kept for it to claim, before it is uncertain. `heartbeat`: how often either side
    asks whether the other is there, `timeout`: when it is given up. `window`: calls that a spoke has at a
    time, `queue`: calls that wait for one, `subcalls`: calls that a spoke has the hub make at a time.
    `operations`: what one spoke registers, `owner_operations`: what the spokes of an owner do together.
    `bad_frames`: frames in a minute that cannot be used before the connection is closed; `frame_rate`: frames
    a second that answer no call, above which the spoke is read more slowly. `frame`, `message`: see the
    protocol. `outbox_limit`: what may wait to be sent to one spoke.
    `abort_wait`: how long the end of a call waits for the spoke to say that it has stopped;
    `abandon_timeout`: when the place of one that never says so is given to another.
    """

    grace: float = 30.0
    claim_timeout: float = 3.0
    hello_timeout: float = 10.0
    heartbeat: float = 10.0
    timeout: float = 25.0
    window: int = 256
    queue: int = 2_000
    subcalls: int = 256
    operations: int = 5_000
    owner_operations: int = 20_000
    bad_frames: int = 100
    frame_rate: float = 1_000.0
    namespaces: int = 200
    max_unauthenticated: int = 64
    frame: int = 1_000_000
    message: int = 32_000_000
    outbox_limit: int = 4_000_000
    abort_wait: float = 0.08
    abandon_timeout: float = 30.0
    attempts: int = 3
    origins: tuple[str, ...] = ()

    @property
    def recheck(self) -> float:
        """Seconds between two checks of the key of a spoke."""
        return self.heartbeat

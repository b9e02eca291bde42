"""Settings of the hub's side of the spoke protocol: times, sizes, counts."""

from __future__ import annotations

import msgspec


class SpokeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that a hub sets for its spokes. Times are in seconds, sizes in bytes.

    `grace`: how long a disconnected spoke may take to reconnect; `claim_timeout`: how long a call that must
    not be repeated waits for it, before its outcome is uncertain. `hello_timeout`: how long to wait for the
    first frame. `heartbeat`: time between two pings of either side; `timeout`: without a reply for this long,
    the connection is closed.

    `window`: calls that a spoke runs at a time; `queue`: calls that wait for a spoke; `subcalls`: calls that
    a spoke makes at the hub at a time; `attempts`: spokes at which a call is tried. `operations`: of one
    spoke; `owner_operations`: of all spokes of an owner; `namespaces`: of an owner. `max_unauthenticated`:
    connections that have sent neither a key nor a hello yet.

    `bad_frames`: frames in a minute that cannot be used, above which the connection is closed; `frame_rate`:
    frames a second that answer no call, above which the spoke is read more slowly. `frame`, `message`: see
    the protocol. `outbox_limit`: characters that may wait to be sent to one spoke. `abort_wait`: how long an
    aborted call waits for the spoke to confirm that; `abandon_timeout`: when the slot of a call that is never
    confirmed is used again. `origins`: of pages that may connect.
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

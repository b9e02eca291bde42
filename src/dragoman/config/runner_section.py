"""The section `runners`: processes that answer sessions with agents of their own."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

Count: TypeAlias = Annotated[int, Meta(ge=1)]


class RunnersConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of runners: sizes in bytes and characters, times in seconds, `rate` in frames a second."""

    enabled: bool = True
    grace: Annotated[float, Meta(ge=0)] = 60.0
    idle: Annotated[float, Meta(gt=0)] = 3600.0
    stop: Annotated[float, Meta(ge=0)] = 5.0
    frame: Count = 4_000_000
    window: Count = 1_000_000
    rate: Count = 2_000
    sessions: Count = 1_000
    owner_connections: Count = 200

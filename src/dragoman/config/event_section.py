"""The section `events`: domain events of sessions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

EventName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]


class EventsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Domain events of sessions: JSON Schemas of their data by name; whether `unknown` names are allowed."""

    schemas: dict[EventName, dict[str, Any]] = {}
    unknown: Literal["allow", "refuse"] = "allow"

"""The section `a2a`: the agents that other agents can discover, and where push notifications are sent."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class A2aConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A2A: `agents` whose cards are public; `url`, the hub's public address, for cards.

    Push notifications are sent to public addresses and to those in `push_networks`, signed with the secret
    in the variable `push_secret_env`. An owner has at most `push_configs` receivers.
    """

    agents: tuple[Annotated[str, Meta(min_length=1)], ...] = ("default",)
    url: str | None = None
    push_networks: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    push_ports: tuple[Annotated[int, Meta(ge=1)], ...] = (80, 443)
    push_secret_env: Annotated[str, Meta(min_length=1)] | None = None
    push_configs: Annotated[int, Meta(ge=1)] = 1_000

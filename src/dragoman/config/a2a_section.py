"""The section `a2a`: the agents that other agents find, and where push notifications go."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class A2aConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A2A: `agents` whose cards need no key; `url`, the hub's public address, for cards.

    Push notifications go to public addresses, and to those in `push_networks`; the secret in
    `push_secret_env` signs them. An owner has at most `push_configs` receivers.
    """

    agents: tuple[Annotated[str, Meta(min_length=1)], ...] = ("default",)
    url: str | None = None
    push_networks: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    push_ports: tuple[Annotated[int, Meta(ge=1)], ...] = (80, 443)
    push_secret_env: Annotated[str, Meta(min_length=1)] | None = None
    push_configs: Annotated[int, Meta(ge=1)] = 1_000

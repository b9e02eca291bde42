"""The section `webhooks`: where the hub posts that a run has ended."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class WebhooksConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Webhooks of runs that end. `secret_env` names the variable with the secret that signs them.

    Without a secret, requests that name a webhook are refused. `url` is for background runs that name none.
    """

    secret_env: Annotated[str, Meta(min_length=1)] | None = None
    url: str | None = None
    allow_hosts: tuple[str, ...] = ()
    allow_networks: tuple[str, ...] = ()
    ports: tuple[Annotated[int, Meta(ge=1)], ...] = (80, 443)
    attempts: Annotated[int, Meta(ge=1)] = 8

    def __repr__(self) -> str:
        """Without the address: what it holds may be secret."""
        return "WebhooksConfig()"

"""The section `webhooks`: where the ends of runs are posted to."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class WebhooksConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is posted when runs end. `secret_env` signs it; `url` is for background runs that name none.

    Without a secret a request that names a webhook is refused.
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

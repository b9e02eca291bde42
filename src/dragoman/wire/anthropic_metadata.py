"""Metadata of Anthropic's: what a part must carry so that it can go back as it came, and to whom.

It stands under `anthropic` in a part's provider metadata. With a `provider` beside, it is of use to that
one only: another has other keys and cannot check its signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.messages import ProviderMetadata

FAMILY = "anthropic"


def sealed(metadata: Mapping[str, Any], provider: str | None) -> ProviderMetadata:
    """Metadata that this provider gave."""
    return {FAMILY: {**metadata, "provider": provider} if provider is not None else dict(metadata)}


def own(metadata: ProviderMetadata | None, provider: str | None) -> Mapping[str, Any]:
    """The metadata if it may go to this provider, else nothing."""
    found = (metadata or {}).get(FAMILY, {})
    return found if found.get("provider") in (None, provider) else {}


def cache_mark(metadata: ProviderMetadata | None) -> dict[str, Any]:
    """The `cache_control` that a block or a tool was marked with."""
    mark = (metadata or {}).get(FAMILY, {}).get("cacheControl")
    return {"cache_control": dict(mark)} if isinstance(mark, Mapping) else {}

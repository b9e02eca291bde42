"""Anthropic's provider metadata: what a part must carry to be sent back unchanged, and to whom.

It is stored under `anthropic` in a part's provider metadata. If it names a `provider`, it is valid
for that one only: another has other keys and cannot verify its signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.messages import ProviderMetadata
from dragoman.wire.json_codec import drop_non_finite

FAMILY = "anthropic"


def bind_to_provider(metadata: Mapping[str, Any], provider: str | None) -> ProviderMetadata:
    """Metadata that is sent back to the provider that sent it, and to no other."""
    fields = drop_non_finite(metadata)
    return {FAMILY: {**fields, "provider": provider} if provider is not None else fields}


def own_metadata(metadata: ProviderMetadata | None, provider: str | None) -> Mapping[str, Any]:
    """Return the metadata if it may be sent to this provider, else nothing."""
    fields = (metadata or {}).get(FAMILY, {})
    return fields if fields.get("provider") in (None, provider) else {}


def cache_control_field(metadata: ProviderMetadata | None) -> dict[str, Any]:
    """Return the `cache_control` of a block or a tool."""
    cache_control = (metadata or {}).get(FAMILY, {}).get("cacheControl")
    return {"cache_control": dict(cache_control)} if isinstance(cache_control, Mapping) else {}

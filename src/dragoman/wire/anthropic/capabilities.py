"""Models of Anthropic's: what a family can do and refuses, told by its name.

Source: wire notes on providers, §6.1. A model of a later version than those known is taken for the newest;
one that is no Claude at all (behind a gateway) for one that takes all that is old.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from dragoman.messages import ProviderMetadata

Effort = Literal["low", "medium", "high", "xhigh", "max"]

SHORT_MAX_TOKENS, LONG_MAX_TOKENS, LONGEST_MAX_TOKENS = 4096, 12_000, 32_000  # tokens

_MODEL_NAME = re.compile(r"claude-([a-z]+)(?:-(\d{1,2})(?:[-.](\d{1,2}))?)?(?!\d)")
_OLD_MODEL_NAME = re.compile(r"claude-(?:v|instant-)?(\d)(?:[-.](\d))?")
_NEWEST_FAMILIES = frozenset({"fable", "mythos"})


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes.

    `sampling`: temperature, top_p and top_k; `temperature_with_top_p`: temperature together with top_p.
    `adaptive_thinking`: it decides itself how much it thinks, else it is given a budget. `effort`:
    output_config.effort; `xhigh_effort`: that effort too. `forced_tool_choice`: a tool choice that demands
    a call. `structured_output`: output_config.format. `default_max_tokens`: the max_tokens of a request
    that says none. Anthropic wants a number, and no price list tells how much a model can write: it is well
    within what all of those models take, and more where thinking counts into it unbidden.
    """

    sampling: bool = True
    temperature_with_top_p: bool = True
    thinking: bool = True
    adaptive_thinking: bool = False
    effort: bool = False
    xhigh_effort: bool = False
    forced_tool_choice: bool = True
    structured_output: bool = True
    default_max_tokens: int = SHORT_MAX_TOKENS


def model_capabilities(name: str) -> ModelCapabilities:
    """The model of this name, in whichever way a vendor spells it."""
    name = name.lower()
    if "claude" not in name:
        return ModelCapabilities(structured_output=False)
    family, version = _parse_name(name)
    newest = family in _NEWEST_FAMILIES or version >= (5, 0) or (family == "opus" and version >= (4, 7))
    adaptive = newest or (family in ("opus", "sonnet") and version >= (4, 6))
    return ModelCapabilities(
        sampling=not newest,
        temperature_with_top_p=version < (4, 1),
        thinking=version >= (3, 7),
        adaptive_thinking=adaptive,
        effort=adaptive or (family == "opus" and version >= (4, 5)),
        xhigh_effort=newest,
        forced_tool_choice=family not in _NEWEST_FAMILIES,
        structured_output=newest or version >= ((4, 1) if family == "opus" else (4, 5)),
        default_max_tokens=LONGEST_MAX_TOKENS
        if adaptive
        else LONG_MAX_TOKENS
        if version >= (3, 7)
        else SHORT_MAX_TOKENS,
    )


def _parse_name(name: str) -> tuple[str, tuple[int, int]]:
    """The family and the version; without a version it is the latest."""
    old = _OLD_MODEL_NAME.search(name)
    if old is not None:
        return "", (int(old[1]), int(old[2] or 0))
    found = _MODEL_NAME.search(name)
    if found is None:
        return "", (99, 0)
    family, major, minor = found.groups()
    return family, (int(major), int(minor or 0)) if major else (99, 0)


# ---- Metadata of Anthropic's: what a part must carry so that it can go back as it came, and to whom.
# It stands under `anthropic` in a part's provider metadata. With a `provider` beside, it is of use to that
# one only: another has other keys and cannot check its signatures.

FAMILY = "anthropic"


def bind_to_provider(metadata: Mapping[str, Any], provider: str | None) -> ProviderMetadata:
    """Metadata that this provider gave."""
    return {FAMILY: {**metadata, "provider": provider} if provider is not None else dict(metadata)}


def own_metadata(metadata: ProviderMetadata | None, provider: str | None) -> Mapping[str, Any]:
    """The metadata if it may go to this provider, else nothing."""
    found = (metadata or {}).get(FAMILY, {})
    return found if found.get("provider") in (None, provider) else {}


def cache_control_field(metadata: ProviderMetadata | None) -> dict[str, Any]:
    """The `cache_control` that a block or a tool was marked with."""
    mark = (metadata or {}).get(FAMILY, {}).get("cacheControl")
    return {"cache_control": dict(mark)} if isinstance(mark, Mapping) else {}

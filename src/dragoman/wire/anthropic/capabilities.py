"""What Anthropic's model families support, by model name.

A version later than those known counts as the newest; a name that is not Claude (behind a gateway) counts as
a model that supports only the oldest features. Source: wire notes on providers, §6.1.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Effort = Literal["low", "medium", "high", "xhigh", "max"]

SHORT_MAX_TOKENS, LONG_MAX_TOKENS, LONGEST_MAX_TOKENS = 4096, 12_000, 32_000  # tokens

_MODEL_NAME = re.compile(r"claude-([a-z]+)(?:-(\d{1,2})(?:[-.](\d{1,2}))?)?(?!\d)")
_OLD_MODEL_NAME = re.compile(r"claude-(?:v|instant-)?(\d)(?:[-.](\d))?")
_NEWEST_FAMILIES = frozenset({"fable", "mythos"})


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a model supports.

    `sampling`: temperature, top_p and top_k; `temperature_with_top_p`: both together. `adaptive_thinking`:
    the model decides how much it thinks, else it needs a budget. `effort`: output_config.effort;
    `xhigh_effort`: that effort too. `forced_tool_choice`: a tool choice that requires a call.
    `structured_output`: output_config.format. `default_max_tokens`: for requests without a limit. Anthropic
    requires one, and no price list tells how much a model can write: the default is well within every model's
    limit, and higher where thinking counts into it unasked.
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
    """Return the capabilities of the model with this name, in any vendor's spelling."""
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
    """Return the family and the version; without a version, the latest."""
    old_match = _OLD_MODEL_NAME.search(name)
    if old_match is not None:
        return "", (int(old_match[1]), int(old_match[2] or 0))
    match = _MODEL_NAME.search(name)
    if match is None:
        return "", (99, 0)
    family, major, minor = match.groups()
    return family, (int(major), int(minor or 0)) if major else (99, 0)

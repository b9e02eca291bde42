"""Models of Anthropic's: what a family can do and refuses, told by its name.

Source: wire notes on providers, §6.1. A model of a later version than those known is taken for the newest;
one that is no Claude at all (behind a gateway) for one that takes all that is old.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Effort = Literal["low", "medium", "high", "xhigh", "max"]

SHORT, LONG, LONGEST = 4096, 12_000, 32_000  # tokens

_NAME = re.compile(r"claude-([a-z]+)(?:-(\d{1,2})(?:[-.](\d{1,2}))?)?(?!\d)")
_OLD_NAME = re.compile(r"claude-(?:v|instant-)?(\d)(?:[-.](\d))?")
_STRICT = frozenset({"fable", "mythos"})


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes.

    `sampling`: temperature, top_p and top_k; `both`: temperature together with top_p. `adaptive`: it decides
    itself how much it thinks, else it is given a budget. `effort`: output_config.effort; `xhigh`: that effort
    too. `forcing`: a tool choice that demands a call. `schemas`: output_config.format. `answer`: the
    max_tokens of a request that says none. Anthropic wants a number, and no price list tells how much a model
    can write: it is well within what all of those models take, and more where thinking counts into it
    unbidden.
    """

    sampling: bool = True
    both: bool = True
    thinking: bool = True
    adaptive: bool = False
    effort: bool = False
    xhigh: bool = False
    forcing: bool = True
    schemas: bool = True
    answer: int = SHORT


def model_of(name: str) -> Model:
    """The model of this name, in whichever way a vendor spells it."""
    name = name.lower()
    if "claude" not in name:
        return Model(schemas=False)
    family, version = _read(name)
    newest = family in _STRICT or version >= (5, 0) or (family == "opus" and version >= (4, 7))
    adaptive = newest or (family in ("opus", "sonnet") and version >= (4, 6))
    return Model(
        sampling=not newest,
        both=version < (4, 1),
        thinking=version >= (3, 7),
        adaptive=adaptive,
        effort=adaptive or (family == "opus" and version >= (4, 5)),
        xhigh=newest,
        forcing=family not in _STRICT,
        schemas=newest or version >= ((4, 1) if family == "opus" else (4, 5)),
        answer=LONGEST if adaptive else LONG if version >= (3, 7) else SHORT,
    )


def _read(name: str) -> tuple[str, tuple[int, int]]:
    """The family and the version; without a version it is the latest."""
    old = _OLD_NAME.search(name)
    if old is not None:
        return "", (int(old[1]), int(old[2] or 0))
    found = _NAME.search(name)
    if found is None:
        return "", (99, 0)
    family, major, minor = found.groups()
    return family, (int(major), int(minor or 0)) if major else (99, 0)

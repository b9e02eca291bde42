"""Decisions: what a hook may say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec
from msgspec import UNSET

from dragoman.request import ModelRequest


class Continue(msgspec.Struct, frozen=True):
    """Nothing to say: the next hook is asked. The same as None."""


class Block(msgspec.Struct, frozen=True):
    """It must not be; the model, or whoever asked, is told the reason.

    Before a call: it is denied. After it: the result is withheld. Before the model is asked, or of what a
    user says: the run ends there.
    """

    reason: str


class Ask(msgspec.Struct, frozen=True):
    """Somebody has to approve the call first, for this reason. Only for `pre_tool_use`."""

    reason: str


class Modify(msgspec.Struct, frozen=True):
    """It goes on, changed.

    `input`: a call's new input, or a user's new text. `output`: what the model is told instead of a call's
    result, or as the message of its failure. `request`: what the model is asked instead. `metadata` is kept
    in the call's notes.
    """

    input: Any = UNSET
    reason: str | None = None
    output: Any = UNSET
    request: ModelRequest | None = None
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


Decision: TypeAlias = Continue | Block | Ask | Modify

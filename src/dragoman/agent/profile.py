"""A profile: an agent as the configuration says it: a model, its instructions, operations and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.agent.context import ContextPolicy
from dragoman.request import Tool

DEFAULT_STEPS = 10
OFF = ContextPolicy()


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers. `model` is `provider/model`; `operations` are pinned: shown to the model as plain tools.

    `client_tools` run in the front end; the run ends at such a call and goes on when the output comes.
    One answer takes at most `timeout` seconds, `max_calls` calls and `max_usd` US dollars; None: as it comes.
    `context` is how a conversation is shortened that grows too long for its model.
    """

    name: str = "default"
    model: str
    instructions: str | None = None
    operations: tuple[str, ...] = ()
    client_tools: tuple[Tool, ...] = ()
    max_steps: int = DEFAULT_STEPS
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    timeout: float | None = None
    max_calls: int | None = None
    max_usd: float | None = None
    context: ContextPolicy = OFF

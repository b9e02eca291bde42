"""Thinking: how much a model of Anthropic's is to think, from the effort that is asked for.

Source: wire notes on providers, §10.1. Newer models decide themselves and take an effort; older ones take a
budget of tokens, which counts into max_tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.wire.anthropic_models import Effort, Model

LEAST = 1024  # the smallest budget that is taken

_BUDGETS = {"minimal": LEAST, "low": 2048, "medium": 10_000, "high": 16_384, "xhigh": 32_768, "max": 32_768}
_EFFORTS: dict[str, Effort] = {
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "max",
}


class Thinking(msgspec.Struct, frozen=True):
    """The request's `thinking` and effort; None: not said. `left_out`: the effort asked for has no word."""

    config: dict[str, Any] | None = None
    effort: Effort | None = None
    left_out: bool = False

    @property
    def budget(self) -> int:
        """The tokens of max_tokens that it may take."""
        budget = (self.config or {}).get("budget_tokens")
        return budget if type(budget) is int else 0


def budgeted(given: Mapping[str, Any], *, limit: int | None) -> Thinking:
    """What a request says itself, in Anthropic's words. BadRequest for a budget that cannot be right."""
    budget = given.get("budget_tokens")
    if given.get("type") == "enabled" and type(budget) is int:
        field = "thinking.budget_tokens"
        if budget < LEAST:
            raise BadRequest(f"{field} must be at least {LEAST}, got {budget!r}", field=field)
        if limit is not None and limit <= budget:
            raise BadRequest(
                f"max_tokens ({limit}) must be above {field} ({budget}): thinking counts into it",
                field="max_tokens",
                hint=f"leave max_tokens out, and the answer gets its usual room beside the {budget}",
            )
    return Thinking(dict(given))


def think(effort: Any, model: Model, *, limit: int | None, bare: bool) -> Thinking:
    """What to say for this effort (OpenAI's `reasoning_effort`); BadRequest when there is no such.

    `limit` is the max_tokens of the client's. `bare`: the history ends in calls without signed thinking
    before them, which a model that thinks by budget refuses.
    """
    if effort is None:
        return Thinking()
    if effort == "none":
        return Thinking({"type": "disabled"}) if model.thinking else Thinking()
    if not isinstance(effort, str) or effort not in _EFFORTS:
        known = ", ".join(["none", *_EFFORTS])
        raise BadRequest(
            f"reasoning_effort must be one of {known}, got {effort!r:.40}", field="reasoning_effort"
        )
    if model.adaptive:
        word = _EFFORTS[effort]
        return Thinking({"type": "adaptive"}, "max" if word == "xhigh" and not model.xhigh else word)
    word = "high" if effort in ("xhigh", "max") else _EFFORTS[effort]
    budget = _BUDGETS[effort] if limit is None else min(_BUDGETS[effort], limit * 3 // 4)
    if not model.thinking or bare or budget < LEAST:
        return Thinking(None, word if model.effort else None, left_out=not model.effort)
    return Thinking({"type": "enabled", "budget_tokens": budget}, word if model.effort else None)

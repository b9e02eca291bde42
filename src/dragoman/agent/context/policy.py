"""Context policies: shorten a conversation to the context of its model.

A truncation is stored as a `data-context` part of the message in progress, so that all requests up to the
next truncation start with the same bytes and prompt caches keep working. The conversation itself is not
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from dragoman.agent.context.summary import Summarise, Summary
from dragoman.agent.context.truncation import join_steps, split_sections, split_steps, token_factor
from dragoman.agent.context.truncation_markers import (
    RemainingConversation,
    TruncationPoint,
    remaining_conversation,
    with_notice,
)
from dragoman.errors import ConfigError, DragomanError
from dragoman.events import Data, Usage
from dragoman.messages import Message
from dragoman.model_request import ModelRequest, request_size
from dragoman.offload import offload
from dragoman.operations.context import Context
from dragoman.providers.provider import Provider
from dragoman.wire.token_estimate import estimate_input, estimate_messages

PolicyKind: TypeAlias = Literal["off", "truncate", "summarise"]
ContextSizes: TypeAlias = Callable[[str], int | None]
"""Return the context of a model in tokens, input and output; None if unknown."""
ProviderContextSizes: TypeAlias = Callable[[Provider], Awaitable[ContextSizes | None]]
"""Return the context sizes of a provider: models of the same name may differ between providers."""
REFUSED_SHARE = 0.5  # of a request that was refused as too long
log = logging.getLogger(__name__)


class Dropped(msgspec.Struct, frozen=True):
    """What a request leaves out that the previous one did not, and the usage of its summary."""

    cut: TruncationPoint
    usage: Usage | None = None

    def event(self) -> Data:
        """Return the `data-context` event. Store it in the message in progress: the next `fit` starts
        there.
        """
        return self.cut.event()


class ContextPolicy(msgspec.Struct, frozen=True):
    """How a conversation that is too long is shortened.

    `limit` is the context of the model in tokens; None looks it up with `windows`, and if that returns None,
    only requests that the provider refused as too long are cut. Above `margin` of the limit, the oldest
    turns are dropped until `keep` of it is left, so that truncations are rare. `summarise` writes the text
    that replaces them; if it fails, they are dropped without one. `recall` names a tool that finds the
    dropped messages; the model is shown its name.
    """

    kind: PolicyKind = "off"
    limit: int | None = None
    margin: float = 0.85
    keep: float = 0.5
    summarise: Summarise | None = None
    windows: ContextSizes | None = None
    recall: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in get_args(PolicyKind):
            raise ConfigError(
                f"the kind of a context policy must be off, truncate or summarise, not {self.kind!r}"
            )
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"a context limit must be a positive number of tokens, not {self.limit!r}")
        if not 0 < self.keep < self.margin <= 1:
            raise ConfigError(
                f"0 < keep < margin <= 1 does not hold for keep={self.keep!r}, margin={self.margin!r}"
            )

    async def fit(
        self, request: ModelRequest, *, refused: int | None = None
    ) -> tuple[ModelRequest, Dropped | None]:
        """Return the request shortened to fit, and what it drops for the first time, or None.

        `refused` is the size (by `estimate_size`) of a request that the provider refused as too long: the
        result is at most half of that. Drops nothing then only if nothing is left to drop.
        """
        if self.kind == "off":
            return request, None
        size = request_size(request)
        fitted = await offload(size, partial(self._shorten, request, refused=refused))
        if isinstance(fitted, ModelRequest):
            return fitted, None
        cut, usage = await self._make_point(fitted.shortened, fitted.remaining)

        def finish() -> tuple[ModelRequest, TruncationPoint]:
            messages = fitted.shortened.messages
            point = replace(cut, tokens=fitted.before, left=self._estimate(request, messages, cut=cut))
            return self._with_notice(request, messages, cut=point), point

        shortened, point = await offload(size, finish)
        return shortened, Dropped(point, usage)

    def _shorten(self, request: ModelRequest, *, refused: int | None) -> ModelRequest | _Cut:
        """Return what is to be dropped from a request, or the request with what was dropped before."""
        remaining = remaining_conversation(request.messages)
        before = self._estimate(request, remaining.messages, cut=remaining.point)
        target = self._cut_target(request, refused)
        shortened = (
            None
            if before <= target.above
            else _drop_oldest(remaining.messages, (before - target.down_to) / token_factor(request.model))
        )
        if shortened is None:
            return self._with_notice(request, remaining.messages, cut=remaining.point)
        return _Cut(remaining, shortened, before)

    def _cut_target(self, request: ModelRequest, refused: int | None) -> _CutTarget:
        limit = self._limit(request)
        room = None if limit is None else _input_limit(limit, request.options, margin=self.margin)
        if refused is not None:
            half = refused * REFUSED_SHARE
            return _CutTarget(half, half if room is None else min(half, room * self.keep / self.margin))
        return (
            _CutTarget(float("inf"), 0) if room is None else _CutTarget(room, room * self.keep / self.margin)
        )

    def _estimate(
        self, request: ModelRequest, messages: Sequence[Message], *, cut: TruncationPoint | None
    ) -> int:
        return estimate_size(self._with_notice(request, messages, cut=cut))

    def _with_notice(
        self, request: ModelRequest, messages: Sequence[Message], *, cut: TruncationPoint | None
    ) -> ModelRequest:
        shown = messages if cut is None else with_notice(messages, cut, recall=self.recall)
        return replace(request, messages=tuple(shown))

    def _limit(self, request: ModelRequest) -> int | None:
        """Return the smaller of the model's context and the one that the request asks for (Ollama's
        `num_ctx`).
        """
        limit = self.limit
        if limit is None and self.windows is not None:
            limit = self.windows(request.model)
        native = request.options.get("options")
        requested = request.options.get("num_ctx") or (
            native.get("num_ctx") if isinstance(native, Mapping) else None
        )
        if not isinstance(requested, int):
            return limit
        return requested if limit is None else min(requested, limit)

    async def _make_point(
        self, shortened: _ShortenedConversation, remaining: RemainingConversation
    ) -> tuple[TruncationPoint, Usage | None]:
        """Return the truncation point, with a summary if the policy makes one."""
        cut = _truncation_point(shortened, remaining.point)
        before = remaining.point.summary if remaining.point is not None else None
        if self.kind != "summarise" or self.summarise is None:
            return replace(cut, summary=before), None
        try:
            result = await self.summarise(shortened.dropped, before)
        except DragomanError as error:
            log.warning("could not summarise the dropped messages: %s", error.message)
            return replace(cut, summary=before, problem=error.message), None
        summary = Summary(result) if isinstance(result, str) else result
        return replace(cut, kind="summarise", summary=summary.text), summary.usage


def summarise_above(policy: ContextPolicy, tokens: int) -> ContextPolicy:
    """Return a policy that summarises requests above this size, also where `policy` is off."""
    margin = policy.margin if policy.kind != "off" else 1.0
    limit = round(tokens / margin) if policy.limit is None else min(policy.limit, round(tokens / margin))
    return replace(policy, kind="summarise", limit=max(1, limit), margin=margin)


class ContextFitter:
    """A context policy as the loop uses it: fitted requests, with the events that record a truncation.

    `sizes` looks up the context sizes by provider; without it, `windows` of the policy is used.
    """

    def __init__(self, policy: ContextPolicy, *, sizes: ProviderContextSizes | None = None) -> None:
        self._policy = policy
        self._sizes = sizes
        self._summary_usage: Usage | None = None

    async def fit(
        self, request: ModelRequest, context: Context, *, provider: Provider | None = None
    ) -> tuple[ModelRequest, Sequence[Data]]:
        """Fit the request of a step to the provider that it goes to."""
        policy = await self._policy_for(provider)
        return self._with_events(await policy.fit(request))

    async def shrink(
        self, request: ModelRequest, context: Context, *, provider: Provider | None = None
    ) -> tuple[ModelRequest, Sequence[Data]]:
        """Shorten a request that the provider refused as too long; no event means nothing is left to drop."""
        policy = await self._policy_for(provider)
        refused = await offload(request_size(request), partial(estimate_size, request))
        return self._with_events(await policy.fit(request, refused=refused))

    def take_usage(self) -> Usage | None:
        """Return the usage of summaries since the last call."""
        used, self._summary_usage = self._summary_usage, None
        return used

    async def _policy_for(self, provider: Provider | None) -> ContextPolicy:
        """Return the policy with the context sizes of this provider's models."""
        if self._sizes is None or provider is None:
            return self._policy
        return replace(self._policy, windows=await self._sizes(provider))

    def _with_events(
        self, result: tuple[ModelRequest, Dropped | None]
    ) -> tuple[ModelRequest, Sequence[Data]]:
        request, dropped = result
        if dropped is None:
            return request, []
        if dropped.usage is not None:
            self._summary_usage = (self._summary_usage or Usage()) + dropped.usage
        return request, [dropped.event()]


def estimate_size(request: ModelRequest) -> int:
    """Return about how many tokens a request is for its model."""
    return estimate_input(request, factor=token_factor(request.model))


class _CutTarget(msgspec.Struct, frozen=True):
    """The size in tokens above which to cut, and the size to cut down to."""

    above: float
    down_to: float


class _ShortenedConversation(msgspec.Struct, frozen=True):
    """A truncated conversation: the remaining messages and the dropped ones."""

    messages: list[Message]
    dropped: list[Message]


class _Cut(msgspec.Struct, frozen=True):
    """What a truncation leaves of a conversation that took `before` tokens."""

    remaining: RemainingConversation
    shortened: _ShortenedConversation
    before: int


def _input_limit(limit: int, options: Mapping[str, Any], *, margin: float) -> float:
    """Return the tokens available to a request: part of the context is for the answer."""
    answer = options.get("max_completion_tokens") or options.get("max_tokens")
    left = limit - answer if isinstance(answer, int) else 0
    return min(limit * margin, left) if left > 0 else limit * margin


def _drop_oldest(messages: list[Message], excess: float) -> _ShortenedConversation | None:
    """Drop the oldest messages until `excess` tokens (before the model's factor) are gone; None if none can
    go.

    The system prompt, the last user message and the last step after it stay.
    """
    sections = split_sections(messages)
    work = [[piece] for group in sections.work for message in group for piece in split_steps(message)]
    gone: list[Message] = []
    turns = units = 0
    for turn in sections.turns:
        if excess <= 0:
            break
        excess -= estimate_messages(turn)
        turns += 1
        gone += turn
    for unit in work[:-1]:
        if excess <= 0:
            break
        excess -= estimate_messages(unit)
        units += 1
        gone += unit
    if not gone:
        return None
    left = [*(message for turn in sections.turns[turns:] for message in turn), *sections.question]
    left += [message for unit in work[units:] for message in unit]
    return _ShortenedConversation([*sections.system, *join_steps(left)], join_steps(gone))


def _truncation_point(shortened: _ShortenedConversation, previous: TruncationPoint | None) -> TruncationPoint:
    """Return the position of the cut: whole messages up to the last, of which some steps may remain."""
    first, last = shortened.dropped[0].id, shortened.dropped[-1]
    partly = any(message.id == last.id for message in shortened.messages)
    done = previous.steps if previous is not None and previous.last == last.id else 0
    count = done + len(split_steps(last)) if partly else 0
    return TruncationPoint(
        kind="truncate", dropped=len(shortened.dropped), first=first, last=last.id, steps=count
    )

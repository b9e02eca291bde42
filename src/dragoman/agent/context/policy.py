"""Context: keeping a conversation within what its model can read, and saying what was left out.

A cut is remembered as a `data-context` part of the message under way, so that all requests up to the next cut
begin with the same bytes and prompt caches go on working. Nothing is taken out of the conversation itself.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec.structs import replace

from dragoman.agent.context.summary import Summarise, Summary
from dragoman.agent.context.truncation import join_steps, split_sections, split_steps, token_factor
from dragoman.agent.context.truncation_points import (
    RemainingConversation,
    TruncationPoint,
    remaining_conversation,
    with_notice,
)
from dragoman.errors import ConfigError, DragomanError
from dragoman.events import Data, Usage
from dragoman.messages import Message
from dragoman.model_request import ModelRequest
from dragoman.operations.context import Context
from dragoman.providers.provider import Provider
from dragoman.wire.token_estimate import estimate_input, estimate_messages

PolicyKind: TypeAlias = Literal["off", "truncate", "summarise"]
ContextSizes: TypeAlias = Callable[[str], int | None]
"""The tokens that a model of this name reads and writes; None when that is not known."""
ProviderContextSizes: TypeAlias = Callable[[Provider], Awaitable[ContextSizes | None]]
"""The same for each provider, whose models of the same name may take different amounts."""
REFUSED_SHARE = 0.5  # of a request that was refused as too long
log = logging.getLogger(__name__)


class Dropped(msgspec.Struct, frozen=True):
    """What a request leaves out that the one before it did not, and what a summary of it took."""

    cut: TruncationPoint
    usage: Usage | None = None

    def event(self) -> Data:
        """`data-context`. Keep it in the message under way: the next `fit` reads there where to begin."""
        return self.cut.event()


class ContextPolicy(msgspec.Struct, frozen=True):
    """How a conversation that grows too long is shortened.

    `limit` is what the model reads and writes, in tokens; None asks `windows`, and where that does not know,
    cuts only what a provider refused as too long. Above `margin` of the limit the oldest turns go until
    `keep` of it is left, so that the next cut is far off. `summarise` makes the text that stands for them;
    where it fails they are left out without. `recall` names a tool that finds what was left out; the model
    is told of it.
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
            raise ConfigError(f"a context policy is off, truncate or summarise, not {self.kind!r}")
        if self.limit is not None and self.limit < 1:
            raise ConfigError(f"a context limit is a number of tokens, not {self.limit!r}")
        if not 0 < self.keep < self.margin <= 1:
            raise ConfigError(f"0 < keep < margin <= 1, got keep {self.keep!r} and margin {self.margin!r}")

    async def fit(
        self, request: ModelRequest, *, refused: int | None = None
    ) -> tuple[ModelRequest, Dropped | None]:
        """The request as it fits, and what it leaves out for the first time; None: nothing.

        `refused` is how many tokens (by `estimate_size`) were too many for the provider: it is cut to half
        of that, and nothing is dropped then only when there is nothing left that could be.
        """
        if self.kind == "off":
            return request, None
        kept = remaining_conversation(request.messages)
        before = self._estimate(request, kept.messages, cut=kept.point)
        goal = self._cut_target(request, refused)
        found = (
            None
            if before <= goal.above
            else _drop_oldest(kept.messages, (before - goal.down_to) / token_factor(request.model))
        )
        if found is None:
            return self._with_notice(request, kept.messages, cut=kept.point), None
        cut, usage = await self._make_point(found, kept)
        cut = replace(cut, tokens=before, left=self._estimate(request, found.messages, cut=cut))
        return self._with_notice(request, found.messages, cut=cut), Dropped(cut, usage)

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
        said = messages if cut is None else with_notice(messages, cut, recall=self.recall)
        return replace(request, messages=tuple(said))

    def _limit(self, request: ModelRequest) -> int | None:
        """The smaller of what the model takes and what the request asks for (Ollama's `num_ctx`)."""
        known = self.limit
        if known is None and self.windows is not None:
            known = self.windows(request.model)
        native = request.options.get("options")
        asked = request.options.get("num_ctx") or (
            native.get("num_ctx") if isinstance(native, Mapping) else None
        )
        if not isinstance(asked, int):
            return known
        return asked if known is None else min(asked, known)

    async def _make_point(
        self, shortened: _ShortenedConversation, remaining: RemainingConversation
    ) -> tuple[TruncationPoint, Usage | None]:
        """The cut, with a summary if there is to be one."""
        cut = _truncation_point(shortened, remaining.point)
        before = remaining.point.summary if remaining.point is not None else None
        if self.kind != "summarise" or self.summarise is None:
            return replace(cut, summary=before), None
        try:
            given = await self.summarise(shortened.dropped, before)
        except DragomanError as error:
            log.warning("no summary of what is left out: %s", error.message)
            return replace(cut, summary=before, problem=error.message), None
        summary = Summary(given) if isinstance(given, str) else given
        return replace(cut, kind="summarise", summary=summary.text), summary.usage


class ContextFitter:
    """A policy as the loop asks it: requests that fit, with the events that say what was dropped.

    `sizes` are those of the models of whoever is asked; without, `windows` of the policy knows them.
    """

    def __init__(self, policy: ContextPolicy, *, sizes: ProviderContextSizes | None = None) -> None:
        self._policy = policy
        self._sizes = sizes
        self._summary_usage: Usage | None = None

    async def fit(
        self, request: ModelRequest, context: Context, *, provider: Provider | None = None
    ) -> tuple[ModelRequest, Sequence[Data]]:
        """Before each step, with the provider that it asks."""
        policy = await self._policy_for(provider)
        return self._with_events(await policy.fit(request))

    async def shrink(
        self, request: ModelRequest, context: Context, *, provider: Provider | None = None
    ) -> tuple[ModelRequest, Sequence[Data]]:
        """After a provider refused a request as too long; no event: there is nothing left to drop."""
        policy = await self._policy_for(provider)
        return self._with_events(await policy.fit(request, refused=estimate_size(request)))

    def take_usage(self) -> Usage | None:
        """What summaries took since this was last asked."""
        used, self._summary_usage = self._summary_usage, None
        return used

    async def _policy_for(self, provider: Provider | None) -> ContextPolicy:
        """The policy with the sizes of this provider's models."""
        if self._sizes is None or provider is None:
            return self._policy
        return replace(self._policy, windows=await self._sizes(provider))

    def _with_events(
        self, fitted: tuple[ModelRequest, Dropped | None]
    ) -> tuple[ModelRequest, Sequence[Data]]:
        request, dropped = fitted
        if dropped is None:
            return request, []
        if dropped.usage is not None:
            self._summary_usage = (self._summary_usage or Usage()) + dropped.usage
        return request, [dropped.event()]


def estimate_size(request: ModelRequest) -> int:
    """About how many tokens a request is for its model."""
    return estimate_input(request, factor=token_factor(request.model))


class _CutTarget(msgspec.Struct, frozen=True):
    """Above how many tokens to cut, and down to how many."""

    above: float
    down_to: float


class _ShortenedConversation(msgspec.Struct, frozen=True):
    """A conversation that has been cut: what is left of it, and what went."""

    messages: list[Message]
    dropped: list[Message]


def _input_limit(limit: int, options: Mapping[str, Any], *, margin: float) -> float:
    """Tokens that a request may have: some of the context is for the answer."""
    answer = options.get("max_completion_tokens") or options.get("max_tokens")
    left = limit - answer if isinstance(answer, int) else 0
    return min(limit * margin, left) if left > 0 else limit * margin


def _drop_oldest(messages: list[Message], excess: float) -> _ShortenedConversation | None:
    """Let go of the oldest until as many tokens (before the model's factor) have gone; None: nothing can go.

    The system prompt stays, what the user said last, and the last step after it.
    """
    found = split_sections(messages)
    work = [[piece] for group in found.work for message in group for piece in split_steps(message)]
    gone: list[Message] = []
    turns = units = 0
    for turn in found.turns:
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
    left = [*(said for turn in found.turns[turns:] for said in turn), *found.question]
    left += [said for unit in work[units:] for said in unit]
    return _ShortenedConversation([*found.system, *join_steps(left)], join_steps(gone))


def _truncation_point(shortened: _ShortenedConversation, previous: TruncationPoint | None) -> TruncationPoint:
    """The place of the cut: whole messages up to the last, of which some steps may be left."""
    first, last = shortened.dropped[0].id, shortened.dropped[-1]
    partly = any(message.id == last.id for message in shortened.messages)
    done = previous.steps if previous is not None and previous.last == last.id else 0
    count = done + len(split_steps(last)) if partly else 0
    return TruncationPoint(
        kind="truncate", dropped=len(shortened.dropped), first=first, last=last.id, steps=count
    )

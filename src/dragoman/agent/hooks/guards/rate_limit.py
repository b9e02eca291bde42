"""A rate limit on a model's calls: so many in a time, for each session, operation or owner."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, TypeAlias

from dragoman.agent.hooks.events import Block, PreToolUse
from dragoman.errors import ConfigError
from dragoman.operations.call_limiter import Rate

Per: TypeAlias = Literal["tool", "session", "owner"]
MAX_COUNTERS = 10_000


def rate_limit(
    rate: str | Rate, *, per: Sequence[Per] = ("session", "tool"), clock: Callable[[], float] = time.monotonic
) -> Callable[[PreToolUse], Awaitable[Block | None]]:
    """A `pre_tool_use` hook that blocks calls above a rate like `60/minute`.

    `per` says what is counted apart; nothing: all calls together. What belongs to no session counts for its
    run, else for its owner. Calls that were blocked do not count. ConfigError for no rate.
    """
    allowed = Rate.parse(rate) if isinstance(rate, str) else rate
    wrong = set(per) - {"tool", "session", "owner"}
    if wrong:
        raise ConfigError(f"a rate is counted per tool, session or owner, not per {min(wrong)!r}")
    made: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()

    async def rate_limit(event: PreToolUse) -> Block | None:
        kinds = {
            "tool": event.operation,
            "session": event.session_id or event.run_id or event.owner,
            "owner": event.owner,
        }
        key, now = tuple(kinds[each] for each in per), clock()
        times = made.setdefault(key, deque())
        made.move_to_end(key)
        while times and times[0] <= now - allowed.seconds:
            times.popleft()
        if len(times) >= allowed.calls:
            wait = times[0] + allowed.seconds - now
            return Block(
                f"{allowed.calls} calls in {allowed.seconds:g} seconds are allowed, and were made; "
                f"try again in {max(wait, 0.1):.1f} seconds"
            )
        times.append(now)
        if len(made) > MAX_COUNTERS:
            made.popitem(last=False)
        return None

    return rate_limit

"""Rate limit of tool calls, by session, operation or owner."""

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
    """Return a `pre_tool_use` hook that blocks calls above a rate like `60/minute`.

    `per` names what is counted separately; empty counts all calls together. Without a session the run
    counts, else the owner. Blocked calls do not count. Counters live in this process. Raises ConfigError.
    """
    allowed = Rate.parse(rate) if isinstance(rate, str) else rate
    unknown = set(per) - {"tool", "session", "owner"}
    if unknown:
        raise ConfigError(f"a rate limit counts per tool, session or owner, not per {min(unknown)!r}")
    call_times: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()

    async def rate_limit(event: PreToolUse) -> Block | None:
        kinds = {
            "tool": event.operation,
            "session": event.session_id or event.run_id or event.owner,
            "owner": event.owner,
        }
        key, now = tuple(kinds[each] for each in per), clock()
        times = call_times.setdefault(key, deque())
        call_times.move_to_end(key)
        while times and times[0] <= now - allowed.seconds:
            times.popleft()
        if len(times) >= allowed.calls:
            wait = times[0] + allowed.seconds - now
            return Block(
                f"{allowed.calls} calls in {allowed.seconds:g} seconds are allowed and have been made; "
                f"try again in {max(wait, 0.1):.1f} seconds"
            )
        times.append(now)
        if len(call_times) > MAX_COUNTERS:
            call_times.popitem(last=False)
        return None

    return rate_limit

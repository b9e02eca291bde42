"""Rate limit windows: never more than the limit in any minute, and no memory for idle keys."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.accounts.request_limiter import (
    LimitLease,
    LimitRejection,
    RequestLimiter,
    ScopeLimits,
    SlidingWindow,
)
from dragoman.usage_limits import Limits

PAUSES = st.lists(st.floats(0.0, 30.0), max_size=200)


def enter(
    windows: RequestLimiter, now: float, limits: Limits, *, tokens: int = 0
) -> LimitLease | LimitRejection:
    return windows.acquire(now, [ScopeLimits("key:k", limits)], tokens=tokens)


@given(limit=st.integers(1, 8), pauses=PAUSES)
def test_no_minute_has_more_requests_than_are_allowed(limit: int, pauses: Sequence[float]) -> None:
    windows = RequestLimiter()
    let_in: list[float] = []
    now = 0.0
    for pause in pauses:
        now += pause
        answer = enter(windows, now, Limits(requests_per_minute=limit))
        if isinstance(answer, LimitRejection):
            assert sum(1 for at in let_in if at + 60.0 > now) == limit
            assert now + answer.retry_after >= let_in[-limit] + 60.0 - 1e-6
        else:
            let_in.append(now)
    for at in let_in:
        assert sum(1 for other in let_in if at <= other < at + 60.0) <= limit


def test_who_waits_as_long_as_was_said_is_let_in() -> None:
    windows = RequestLimiter()
    limits = Limits(requests_per_minute=2)
    assert isinstance(enter(windows, 0.0, limits), LimitLease)
    assert isinstance(enter(windows, 10.0, limits), LimitLease)
    assert enter(windows, 15.0, limits) == LimitRejection("key:k", "requests", 2, 45.0)
    assert isinstance(enter(windows, 60.0, limits), LimitLease)
    assert enter(windows, 61.0, limits) == LimitRejection("key:k", "requests", 2, 9.0)


def test_many_requests_take_a_bounded_space_and_are_still_never_too_many() -> None:
    window = SlidingWindow()
    for number in range(100_000):
        now = number / 1_000
        if window.seconds_until_room(now, 1, limit=50_000) == 0.0:
            window.add(now, 1)
    assert 49_900 < window.total <= 50_000
    assert len(window.entries) <= 2_100
    assert window.seconds_until_room(110.1, 1, limit=50_000) == 0.0


def test_tokens_are_those_of_the_prompt_until_the_true_ones_are_known() -> None:
    windows = RequestLimiter()
    limits = Limits(tokens_per_minute=100)
    first = enter(windows, 0.0, limits, tokens=60)
    assert isinstance(first, LimitLease)
    assert enter(windows, 1.0, limits, tokens=60) == LimitRejection("key:k", "tokens", 100, 59.0)
    windows.release(2.0, first, tokens=30)
    second = enter(windows, 3.0, limits, tokens=60)
    assert isinstance(second, LimitLease)
    windows.release(4.0, second, tokens=None)
    assert enter(windows, 5.0, limits, tokens=11) == LimitRejection("key:k", "tokens", 100, 57.0)


def test_tokens_of_a_long_answer_count_from_its_end() -> None:
    windows = RequestLimiter()
    limits = Limits(tokens_per_minute=100)
    stay = enter(windows, 0.0, limits, tokens=10)
    assert isinstance(stay, LimitLease)
    windows.release(300.0, stay, tokens=100)
    assert enter(windows, 301.0, limits, tokens=1) == LimitRejection("key:k", "tokens", 100, 59.0)


def test_more_tokens_than_the_limit_are_never_let_in() -> None:
    assert enter(RequestLimiter(), 0.0, Limits(tokens_per_minute=10), tokens=11) == LimitRejection(
        "key:k", "tokens", 10, float("inf")
    )


def test_as_many_run_at_once_as_may() -> None:
    windows = RequestLimiter()
    limits = Limits(parallel=2)
    first = enter(windows, 0.0, limits)
    assert isinstance(first, LimitLease)
    enter(windows, 0.0, limits)
    assert enter(windows, 0.0, limits) == LimitRejection("key:k", "parallel", 2, 1.0)
    windows.release(0.0, first, tokens=0)
    assert isinstance(enter(windows, 0.0, limits), LimitLease)


def test_a_request_that_one_scope_refuses_counts_in_none() -> None:
    windows = RequestLimiter()
    both = [
        ScopeLimits("key:k", Limits(requests_per_minute=5)),
        ScopeLimits("owner:o", Limits(requests_per_minute=1)),
    ]
    assert isinstance(windows.acquire(0.0, both, tokens=0), LimitLease)
    for _ in range(10):
        assert windows.acquire(1.0, both, tokens=0) == LimitRejection("owner:o", "requests", 1, 59.0)
    for _ in range(4):
        assert isinstance(windows.acquire(2.0, both[:1], tokens=0), LimitLease)
    assert windows.acquire(3.0, both[:1], tokens=0) == LimitRejection("key:k", "requests", 5, 57.0)


@pytest.mark.parametrize("limits", [Limits(requests_per_minute=9), Limits(tokens_per_minute=9)])
def test_who_is_idle_is_forgotten(limits: Limits) -> None:
    windows = RequestLimiter()
    for number in range(1_000):
        stay = windows.acquire(0.0, [ScopeLimits(f"key:{number}", limits)], tokens=1)
        assert isinstance(stay, LimitLease)
        if number:
            windows.release(0.0, stay, tokens=1)
    windows.acquire(120.0, [ScopeLimits("key:new", limits)], tokens=1)
    assert len(windows) == 2

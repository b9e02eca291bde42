"""The key pool of a provider: selection and cooldown."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import ProviderCategory, ProviderError
from dragoman.providers.key_pool import NO_KEY, Cooldown, KeyLease, KeyPool, ProviderKey


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def ring(clock: Clock, names: str = "abc", **cooldown: float) -> KeyPool:
    rest = Cooldown(**{"failures": 3, "window": 60.0, "seconds": 30.0, **cooldown})  # type: ignore[arg-type]
    return KeyPool([ProviderKey(name, f"sk-secret-{name}") for name in names], cooldown=rest, clock=clock)


def error(
    category: ProviderCategory = "rate_limit", status: int | None = 429, **more: object
) -> ProviderError:
    transient = category not in ("auth", "bad_request", "content_filter", "context_limit")
    fields = {"transient": transient, **more}
    return ProviderError("no", category=category, upstream_status=status, **fields)  # type: ignore[arg-type]


def fail(keys: KeyPool, failure: ProviderError, times: int = 1) -> list[str]:
    """Take a key and fail with it, so often; the keys' names."""
    names = []
    for _ in range(times):
        leases = keys.acquire()
        names.append(leases.key.name)
        leases.mark_failed(failure)
    return names


def served(keys: KeyPool, times: int) -> str:
    """The names of the keys that so many requests get, one after the other."""
    names = []
    for _ in range(times):
        leases = keys.acquire()
        leases.mark_succeeded()
        leases.release()
        names.append(leases.key.name)
    return "".join(names)


def test_requests_one_after_the_other_go_round() -> None:
    assert served(ring(Clock()), 7) == "abcabca"


def test_the_least_busy_key_is_taken() -> None:
    keys = ring(Clock())
    leases = {name: [] for name in "abc"}  # type: dict[str, list[KeyLease]]
    for _ in range(6):
        taken = keys.acquire()
        leases[taken.key.name].append(taken)
    assert {name: len(each) for name, each in leases.items()} == {"a": 2, "b": 2, "c": 2}
    for taken in leases["b"]:
        taken.release()
    assert [keys.acquire().key.name for _ in range(3)] == ["b", "b", "a"]
    assert keys.busy == 7


@given(st.lists(st.integers(0, 8), max_size=60))
def test_no_key_is_ever_much_busier_than_the_others(script: list[int]) -> None:
    keys, leases = ring(Clock()), list[KeyLease]()
    for step in script:
        if step < len(leases) and step % 2:
            leases.pop(step).release()
        else:
            before = Counter(taken.key.name for taken in leases)
            leases.append(keys.acquire())
            assert before[leases[-1].key.name] == min(before[name] for name in "abc")
    assert keys.busy == len(leases)


@pytest.mark.parametrize(
    "failure",
    [
        error(),
        error("overloaded", 529),
        error("api_error", 500),
        error("timeout", 504),
        error("overloaded", None),
    ],
    ids=["429", "529", "500", "504", "overloaded inside a stream"],
)
def test_a_key_that_fails_three_times_rests_and_comes_back(failure: ProviderError) -> None:
    clock = Clock()
    keys = ring(clock, "ab")
    other = keys.acquire()  # "a" is busy, so that "b" gets the failures
    assert fail(keys, failure, 3) == ["b", "b", "b"]
    assert (keys.cooling_down, keys.exhausted) == (1, False)
    other.release()
    assert served(keys, 3) == "aaa"
    clock.now += 30.0
    assert keys.cooling_down == 0
    assert sorted(served(keys, 2)) == ["a", "b"]


@pytest.mark.parametrize(
    "failure",
    [
        error("bad_request", 400),
        error("bad_request", 404),
        error("content_filter", 400),
        error("context_limit", 400),
        error("network", None),
        error("timeout", None),
    ],
)
def test_what_is_not_the_keys_fault_does_not_make_it_rest(failure: ProviderError) -> None:
    keys = ring(Clock(), "a")
    fail(keys, failure, 20)
    assert (keys.cooling_down, keys.busy) == (0, 0)


def test_failures_long_ago_do_not_count() -> None:
    clock = Clock()
    keys = ring(clock, "a")
    for _ in range(10):
        fail(keys, error(), 2)
        clock.now += 60.0
    assert keys.cooling_down == 0
    fail(keys, error(), 3)
    assert keys.cooling_down == 1


def test_a_success_makes_earlier_failures_forgotten() -> None:
    keys = ring(Clock(), "a")
    for _ in range(5):
        fail(keys, error(), 2)
        served(keys, 1)
    assert keys.cooling_down == 0


def test_after_its_rest_a_key_has_all_its_chances_again() -> None:
    clock = Clock()
    keys = ring(clock, "a")
    fail(keys, error(), 3)
    clock.now += 30.0
    fail(keys, error(), 2)
    assert keys.cooling_down == 0


@pytest.mark.parametrize(
    "failure",
    [error("auth", 401), error("auth", 403), error("rate_limit", 402, transient=False)],
    ids=["a bad key", "a forbidden one", "one without money"],
)
def test_a_key_that_is_no_good_rests_at_once(failure: ProviderError) -> None:
    keys = ring(Clock(), "ab")
    assert fail(keys, failure) == ["a"]
    assert keys.cooling_down == 1
    assert served(keys, 3) == "bbb"


def test_where_all_keys_rest_the_one_that_is_out_soonest_answers_all_the_same() -> None:
    clock = Clock()
    keys = ring(clock)
    for name in "abc":
        assert fail(keys, error("auth", 401)) == [name]
        clock.now += 1.0
    assert (keys.cooling_down, keys.exhausted) == (3, True)
    assert served(keys, 2) == "aa"
    clock.now = 1030.0
    assert (keys.cooling_down, keys.exhausted) == (2, False)


@pytest.mark.parametrize(
    ("request_count", "seconds"), [(None, 30.0), (5.0, 30.0), (90.0, 90.0), (1e9, 3600.0)]
)
def test_a_key_rests_as_long_as_the_provider_asks_within_reason(
    request_count: float | None, seconds: float
) -> None:
    clock = Clock()
    keys = ring(clock, "a")
    fail(keys, error(retry_after=request_count), 3)
    clock.now += seconds - 0.5
    assert keys.cooling_down == 1
    clock.now += 0.5
    assert keys.cooling_down == 0


def test_another_key_is_taken_than_those_that_were_tried_as_long_as_there_is_one() -> None:
    keys = ring(Clock(), "ab")
    first = keys.acquire()
    second = keys.acquire(exclude=[first.key])
    assert (first.key.name, second.key.name) == ("a", "b")
    assert keys.has_untried([first.key])
    assert not keys.has_untried([first.key, second.key])
    assert keys.acquire(exclude=[first.key, second.key]).key.name in "ab"
    second.mark_failed(error("auth", 401))
    assert not keys.has_untried([first.key])  # it rests


def test_a_request_ends_once_however_often_that_is_said() -> None:
    keys = ring(Clock(), "a")
    leases = keys.acquire()
    for _ in range(4):
        leases.mark_failed(error())
        leases.release()
        leases.mark_succeeded()
    assert (keys.busy, keys.cooling_down) == (0, 0)  # one failure, not four


def test_a_provider_without_keys_has_one_that_is_empty() -> None:
    keys = KeyPool()
    assert keys.acquire().key == NO_KEY
    assert (keys.secrets, keys.exhausted, keys.has_untried([NO_KEY])) == ([], False, False)


def test_no_secret_is_shown() -> None:
    keys = ring(Clock(), "ab")
    shown = f"{keys!r} {keys.acquire().key!r} {keys.acquire()!r}"
    assert "secret" not in shown
    assert "KeyPool(['a', 'b'])" in shown
    assert keys.secrets == ["sk-secret-a", "sk-secret-b"]

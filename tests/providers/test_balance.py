"""Balanced aliases: which route answers the next request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest

from dragoman.errors import Forbidden
from dragoman.providers.balance import BalancedModels, RouteAttempt, Strategy
from dragoman.providers.key_pool import DEFAULT_COOLDOWN
from dragoman.providers.routing import ModelRoutes, Routing, require_model_access
from tests.providers.test_routing import cool_down, places

MODELS = ("a/m", "b/m", "c/m")


class Balanced:
    """A routing with one balanced alias, `any`, on a clock of its own."""

    def __init__(
        self,
        strategy: Strategy,
        models: Sequence[str] = MODELS,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self.now = 0.0
        self.providers = places("a", "b", "c", "d")
        by_name = {f"{name}/m": weight for name, weight in (weights or {}).items()}
        self.routing = Routing(
            self.providers,
            aliases={"any": BalancedModels(models, strategy, by_name), "pair": ["any", "d/m"]},
        )
        self.routing.clock = lambda: self.now

    def choose(self, model: str = "any") -> str:
        """The first route of the next request, which is not sent."""
        return self.routing.model_routes(model).first.name

    def send(self) -> tuple[str, RouteAttempt]:
        """Begin the next request."""
        routes = self.routing.model_routes("any")
        return routes.first.name, start(routes)

    def answer(self, seconds: float) -> str:
        """Send a request that is answered after so long."""
        name, attempt = self.send()
        self.now += seconds
        attempt.mark_answered()
        attempt.end()
        return name

    def attempt_on(self, name: str) -> RouteAttempt:
        """Begin a request on this route."""
        routes = self.routing.model_routes("any", select=False)
        attempt = routes.start_attempt(next(route for route in routes.routes if route.name == name))
        assert attempt is not None
        return attempt

    def fail_on(self, name: str, *, times: int) -> None:
        """Send requests that fail to this route."""
        for _ in range(times):
            self.attempt_on(name).fail()

    def answer_on(self, name: str) -> None:
        """Send a request that is answered to this route."""
        attempt = self.attempt_on(name)
        attempt.mark_answered()
        attempt.end()


def start(routes: ModelRoutes) -> RouteAttempt:
    attempt = routes.start_attempt(routes.first)
    assert attempt is not None
    return attempt


def test_round_robin_takes_each_in_turn() -> None:
    at = Balanced("round_robin")
    assert [at.choose() for _ in range(7)] == ["a/m", "b/m", "c/m", "a/m", "b/m", "c/m", "a/m"]


def test_all_other_routes_follow_as_fallbacks() -> None:
    at = Balanced("round_robin")
    for first in ("a/m", "b/m", "c/m"):
        names = [route.name for route in at.routing.model_routes("any").routes]
        assert (names[0], sorted(names)) == (first, sorted(MODELS))


def test_a_look_at_the_routes_takes_no_turn() -> None:
    at = Balanced("round_robin")
    for expected in ("a/m", "b/m", "c/m"):
        assert at.routing.model_routes("any", select=False).first.name == expected
        assert at.routing.find_routes("any")[0].name == expected
        assert at.choose() == expected


@pytest.mark.parametrize("strategy", ["round_robin", "least_busy", "weighted", "latency"])
def test_a_route_that_cools_down_is_passed_over_and_others_share_its_requests(strategy: Strategy) -> None:
    at = Balanced(strategy)
    cool_down(at.providers["b"])
    assert Counter(at.choose() for _ in range(6)) == {"a/m": 3, "c/m": 3}
    assert [route.name for route in at.routing.find_routes("any")][-1] == "b/m"


@pytest.mark.parametrize("strategy", ["round_robin", "least_busy", "weighted", "latency"])
def test_a_route_that_goes_on_failing_rests_also_without_an_answer(strategy: Strategy) -> None:
    at = Balanced(strategy, ("a/m", "b/m"))
    at.fail_on("a/m", times=DEFAULT_COOLDOWN.failures)
    assert {at.choose() for _ in range(9)} == {"b/m"}
    at.now += DEFAULT_COOLDOWN.seconds
    at.fail_on("b/m", times=DEFAULT_COOLDOWN.failures)
    assert {at.choose() for _ in range(9)} == {"a/m"}


def test_failures_count_in_a_row_and_within_a_window() -> None:
    at = Balanced("round_robin", ("a/m", "b/m"))
    for _ in range(3):
        at.fail_on("a/m", times=DEFAULT_COOLDOWN.failures - 1)
        at.answer_on("a/m")
        at.fail_on("b/m", times=DEFAULT_COOLDOWN.failures - 1)
        at.now += DEFAULT_COOLDOWN.window
    assert {at.choose() for _ in range(4)} == {"a/m", "b/m"}


def test_least_busy_takes_the_route_with_the_fewest_active_requests() -> None:
    at = Balanced("least_busy")
    sent = [at.send() for _ in range(6)]
    assert [name for name, _ in sent] == ["a/m", "b/m", "c/m", "a/m", "b/m", "c/m"]
    for name, attempt in sent:
        if name == "b/m":
            attempt.end()
            attempt.end()  # only the first counts
    assert [at.send()[0] for _ in range(3)] == ["b/m", "b/m", "a/m"]


def test_requests_that_were_chosen_together_are_spread_before_any_has_begun() -> None:
    at = Balanced("least_busy")
    assert Counter(at.choose() for _ in range(9)) == {"a/m": 3, "b/m": 3, "c/m": 3}


def test_least_busy_counts_requests_by_the_full_name_too() -> None:
    at = Balanced("least_busy", ("a/m", "b/m"))
    assert at.choose() == "a/m"
    start(at.routing.model_routes("b/m"))
    assert [at.choose() for _ in range(3)] == ["a/m"] * 3


@pytest.mark.parametrize(
    ("weights", "counts"),
    [
        ({}, {"a/m": 20, "b/m": 20, "c/m": 20}),
        ({"a": 3.0}, {"a/m": 36, "b/m": 12, "c/m": 12}),
        ({"a": 0.5, "b": 0.25, "c": 0.25}, {"a/m": 30, "b/m": 15, "c/m": 15}),
        ({"a": 0.0, "b": 2.0}, {"b/m": 40, "c/m": 20}),
    ],
)
def test_weights_are_shares_of_the_requests(weights: dict[str, float], counts: dict[str, int]) -> None:
    at = Balanced("weighted", weights=weights)
    assert Counter(at.choose() for _ in range(60)) == counts


def test_a_route_of_weight_0_is_asked_when_no_other_is_healthy() -> None:
    at = Balanced("weighted", ("a/m", "b/m"), {"a": 0})
    assert at.choose() == "b/m"
    cool_down(at.providers["b"])
    assert at.choose() == "a/m"


def test_weighted_requests_are_interleaved() -> None:
    at = Balanced("weighted", ("a/m", "b/m"), {"a": 3})
    assert "".join(at.choose()[0] for _ in range(8)) == "aabaaaba"


def test_latency_takes_the_route_whose_answers_begin_soonest() -> None:
    at = Balanced("latency")
    seconds = {"a/m": 3.0, "b/m": 1.0, "c/m": 2.0}
    chosen = []
    for _ in range(12):
        name, attempt = at.send()
        at.now += seconds[name]
        attempt.mark_answered()
        attempt.end()
        chosen.append(name)
    assert chosen[:3] == ["a/m", "b/m", "c/m"]  # each is measured first
    assert set(chosen[3:]) == {"b/m"}


def test_latency_counts_active_requests_and_tries_slow_routes_again() -> None:
    at = Balanced("latency", ("a/m", "b/m"))
    assert [at.answer(4.0), at.answer(1.0)] == ["a/m", "b/m"]
    assert Counter(at.send()[0] for _ in range(10)) == {"b/m": 8, "a/m": 2}
    calm = Balanced("latency", ("a/m", "b/m"))
    assert [calm.answer(4.0), calm.answer(1.0)] == ["a/m", "b/m"]
    names = [calm.answer(1.0) for _ in range(400)]
    assert 1 <= names.count("a/m") < 200


def test_a_failed_attempt_counts_as_slow_not_as_fast() -> None:
    at = Balanced("latency", ("a/m", "b/m"))
    at.fail_on("a/m", times=1)
    assert at.answer(2.0) == "b/m"
    assert at.choose() == "b/m"


def test_an_alias_that_names_a_balanced_one_balances_too() -> None:
    at = Balanced("round_robin", ("a/m", "b/m"))
    names = [[route.name for route in at.routing.model_routes("pair").routes] for _ in range(2)]
    assert names == [["a/m", "b/m", "d/m"], ["b/m", "a/m", "d/m"]]
    assert at.choose() == "a/m"


def test_a_balanced_alias_within_a_balanced_one_has_one_share() -> None:
    routing = Routing(
        places("a", "b", "c"),
        aliases={
            "inner": BalancedModels(("a/m", "b/m"), "round_robin"),
            "outer": BalancedModels(("inner", "c/m", "c/m"), "round_robin"),
        },
        fallbacks={"outer": ["a/other", "b/m"]},
    )
    chosen = [routing.model_routes("outer").routes for _ in range(4)]
    assert [routes[0].name for routes in chosen] == ["a/m", "c/m", "b/m", "c/m"]
    assert [route.name for route in chosen[0]] == ["a/m", "b/m", "c/m", "a/other"]


def test_a_key_needs_all_models_of_a_balanced_alias_or_its_name() -> None:
    routing = Balanced("round_robin").routing
    for allowed in (["any"], ["*"], ["a/*", "b/*", "c/m"]):
        require_model_access(allowed, "any", routing=routing)
    for refused in (["a/*"], ["a/m", "b/m"], ["pair"], []):
        with pytest.raises(Forbidden):
            require_model_access(refused, "any", routing=routing)

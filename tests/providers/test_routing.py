"""Routing: which providers answer for a model name, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dragoman.errors import BadRequest, DragomanError, Forbidden, NotFound, ProviderError, TooLarge
from dragoman.http.connection import Timeouts
from dragoman.http.per_loop_transport import LazyTransport
from dragoman.providers.balance import BalancedModels
from dragoman.providers.endpoint import UpstreamServer
from dragoman.providers.openai import OpenAIProvider
from dragoman.providers.routing import FALLBACK_CATEGORIES, Routing, require_model_access


def places(*names: str) -> dict[str, OpenAIProvider]:
    server, transport = (
        UpstreamServer(base_url="http://127.0.0.1:9/v1", api_key="sk-1"),
        LazyTransport(Timeouts()),
    )
    return {name: OpenAIProvider.for_server(name, server, transport=transport) for name in names}


def cool_down(provider: OpenAIProvider) -> None:
    provider.keys.acquire().mark_failed(ProviderError("wrong key", category="auth"))


def routing(names: Sequence[str] = ("a", "b", "c"), **rules: Any) -> Routing:
    return Routing(places(*names), **rules)


def found(of: Routing, model: str) -> list[str]:
    return [route.name for route in of.find_routes(model)]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("a/m", ["a/m"]),
        ("a/org/model:free", ["a/org/model:free"]),
        ("fast", ["b/small"]),
        ("nested", ["b/small", "c/other", "a/big"]),
        ("twice", ["a/m", "b/m"]),
        ("a/slow", ["a/slow", "c/slow"]),
        ("safe", ["a/m", "c/m"]),
    ],
)
def test_a_name_leads_to_its_models_in_their_order(model: str, names: list[str]) -> None:
    routes = routing(
        aliases={
            "fast": ["b/small"],
            "nested": ["fast", "both"],
            "both": ["c/other", "a/big"],
            "twice": ["a/m", "b/m", "a/m"],
            "safe": ["a/m"],
        },
        fallbacks={"a/slow": ["c/slow"], "safe": ["c/m", "a/m"]},
    )
    assert found(routes, model) == names
    assert found(routes, model) == names  # and when it is asked again


def test_fallbacks_are_those_of_the_name_else_of_its_first_model_else_of_all() -> None:
    routes = routing(
        aliases={"x": ["a/1"], "y": ["a/2"], "z": ["a/3"]},
        fallbacks={"x": ["b/x"], "a/1": ["b/1"], "a/2": ["b/2"], "*": ["c/all", "z"]},
    )
    assert [found(routes, model) for model in ("x", "y", "z", "c/all")] == [
        ["a/1", "b/x"],
        ["a/2", "b/2"],
        ["a/3", "c/all"],
        ["c/all", "a/3"],
    ]


def test_a_bare_name_is_a_model_of_the_default_provider() -> None:
    routes = routing(default="b", aliases={"fast": ["a/m"]})
    assert [found(routes, model) for model in ("gpt-x", "fast", "a/m", "meta/llama")] == [
        ["b/gpt-x"],
        ["a/m"],
        ["a/m"],
        ["b/meta/llama"],
    ]


@pytest.mark.parametrize("balance", [None, "round_robin"])
def test_the_alias_of_all_names_stands_for_those_that_lead_nowhere_else(balance: Any) -> None:
    models = ("b/all",) if balance is None else BalancedModels(("b/all", "fast"), balance)
    routes = routing(default="b", aliases={"fast": ["a/m"], "*": models}, fallbacks={"*": ["c/last"]})
    others = ["b/all"] if balance is None else ["b/all", "a/m"]
    assert set(found(routes, "gpt-x")) == {*others, "c/last"}
    assert set(found(routes, "d/m")) == {*others, "c/last"}
    assert found(routes, "fast") == ["a/m", "c/last"]
    assert found(routes, "c/m") == ["c/m", "c/last"]
    require_model_access(["b/*", "a/*"], "gpt-x", routing=routes)
    with pytest.raises(Forbidden):
        require_model_access(["a/*"], "gpt-x", routing=routes)


@pytest.mark.parametrize("model", ["gpt-x", "d/m", "a/", "/m", "a", "", "/"])
def test_a_model_without_a_route_is_refused_with_the_known_ones(model: str) -> None:
    with pytest.raises(NotFound) as refused:
        routing(aliases={"fast": ["a/m"]}).find_routes(model)
    assert refused.value.message == f"there is no model {model!r}; the hub knows a/..., b/..., c/..., fast"
    assert refused.value.hint == "a model is written provider/model, or is an alias of dragoman.yaml"


@pytest.mark.parametrize(
    ("model", "similar"),
    [
        ("fsat", "fast"),
        ("FAST", "fast"),
        ("opnai/gpt-5.1", "openai/gpt-5.1"),
        ("OpenAI/gpt-5.1", "openai/gpt-5.1"),
        ("local/quen", "local/qwen"),
        ("loacl/qwen", "local/qwen"),
        ("zzz/zzz", None),
        ("x" * 100_000, None),
    ],
)
def test_a_misspelt_model_gets_the_list_and_a_suggestion(model: str, similar: str | None) -> None:
    routes = Routing(
        places("openai", "local"),
        aliases={"fast": ["openai/m"]},
        listed_models={"local": ("qwen", "gemma")},
    )
    with pytest.raises(NotFound) as refused:
        routes.find_routes(model)
    suggestion = "" if similar is None else f"; did you mean {similar!r}?"
    existing = "fast, local/gemma, local/qwen, openai/..."
    assert refused.value.message == f"there is no model {model!r}; the hub knows {existing}{suggestion}"


def test_the_list_of_models_in_an_error_is_short() -> None:
    routes = Routing(places("local"), listed_models={"local": [f"m{n}" for n in range(10_000)]})
    with pytest.raises(NotFound) as refused:
        routes.find_routes("local/nothing")
    assert len(refused.value.message) < 1_000


def test_a_provider_may_have_no_other_models_than_those_listed() -> None:
    routes = routing(listed_models={"a": ("m", "n")}, default="a", aliases={"odd": ["a/x"]})
    assert [found(routes, model) for model in ("a/m", "n", "b/x")] == [["a/m"], ["a/n"], ["b/x"]]
    for model in ("a/x", "x", "odd"):
        with pytest.raises(NotFound):
            routes.find_routes(model)


def test_a_provider_whose_keys_all_cool_down_comes_last() -> None:
    providers = places("a", "b", "c")
    routes = Routing(providers, aliases={"any": ["a/m", "b/m", "c/m"]})
    cool_down(providers["a"])
    assert found(routes, "any") == ["b/m", "c/m", "a/m"]
    cool_down(providers["b"])
    cool_down(providers["c"])
    assert found(routes, "any") == ["a/m", "b/m", "c/m"]


def test_names_that_clients_make_up_take_a_bounded_space() -> None:
    routes = routing(default="a")
    for number in range(5000):
        assert found(routes, f"m-{number}") == [f"a/m-{number}"]
    assert len(routes._cache) < 5000


@pytest.mark.parametrize(
    ("error", "falls"),
    [
        *((ProviderError("no", category=category), True) for category in FALLBACK_CATEGORIES),  # type: ignore[arg-type]
        (ProviderError("no", category="bad_request"), False),
        (ProviderError("no such model", category="bad_request", upstream_status=404), True),
        (ProviderError("no", category="context_limit"), False),
        (ProviderError("no", category="content_filter"), False),
        (ProviderError("no", category="cancelled"), False),
        (BadRequest("this provider has no images"), True),
        (TooLarge("too large"), False),
    ],
    ids=str,
)
def test_what_another_provider_may_do_better_goes_on_to_it(error: DragomanError, *, falls: bool) -> None:
    assert routing().allows_fallback(error) is falls


def test_the_classes_of_errors_to_fall_on_can_be_chosen() -> None:
    routes = routing(fallback_categories=["context_limit"])
    assert routes.allows_fallback(ProviderError("long", category="context_limit"))
    assert not routes.allows_fallback(ProviderError("busy", category="overloaded"))


@pytest.mark.parametrize(
    ("patterns", "model", "may"),
    [
        (None, "a/m", True),
        (["a/m"], "a/m", True),
        (["a/*"], "a/m", True),
        (["*"], "fast", True),
        (["fast"], "fast", True),
        (["b/small"], "fast", True),
        (["b/*"], "fast", True),
        (["a/*"], "fast", False),
        (["fast"], "b/small", False),
        (["A/*"], "a/m", False),
        ([], "a/m", False),
    ],
)
def test_a_key_asks_what_its_patterns_fit(patterns: list[str] | None, model: str, *, may: bool) -> None:
    routes = routing(aliases={"fast": ["b/small", "a/m"]})
    if may:
        require_model_access(patterns, model, routing=routes)
        return
    with pytest.raises(Forbidden) as refused:
        require_model_access(patterns, model, routing=routes)
    allowed = ", ".join(patterns or ()) or "none"
    assert refused.value.message == f"this key may not use the model {model!r}; it may use {allowed}"


def test_who_may_ask_does_not_depend_on_which_provider_cools_down() -> None:
    providers = places("a", "b")
    routes = Routing(providers, aliases={"fast": ["a/m", "b/m"]})
    cool_down(providers["a"])
    require_model_access(["a/*"], "fast", routing=routes)
    with pytest.raises(Forbidden):
        require_model_access(["b/*"], "fast", routing=routes)

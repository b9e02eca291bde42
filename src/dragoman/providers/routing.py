"""Routing: which providers answer for the name of a model, in which order."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, Forbidden, NotFound, ProviderError
from dragoman.model_request import ModelRequest
from dragoman.providers.balance import BalancedModels, Balancer, RouteAttempt, RouteLoad
from dragoman.providers.key_pool import DEFAULT_COOLDOWN
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.providers.unknown_model import describe_models, is_unknown_model
from dragoman.suggestions import find_similar_name, suggest

FALLBACK_CATEGORIES: tuple[str, ...] = ("rate_limit", "overloaded", "timeout", "network", "api_error", "auth")
MAX_CACHED = 2048
MAX_NAMES_SHOWN = 50  # in an error
ANY_MODEL = "*"
"""The alias for all names that are neither an alias nor `provider/model`."""


class Route(NamedTuple):
    """A provider and its own name for the model."""

    provider: Provider
    model: str

    @property
    def name(self) -> str:
        """`provider/model`."""
        return f"{self.provider.name}/{self.model}"


class ModelRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The routes of one requested model, in the order in which they are tried.

    `model` is the requested name; `options` are defaults by the name of the provider. `on_fallback` is called
    with the names of the route that failed and of the next one. `loads` has the loads of balanced routes, by
    route name. `is_offered` returns whether a model of a provider may be requested. `members` are the models
    of an alias of several, by name.
    """

    model: str
    routes: Sequence[Route]
    options: Mapping[str, Mapping[str, Any]] = {}
    allows_fallback: Callable[[DragomanError], bool] = lambda _: False
    on_fallback: Callable[[str, str], None] = lambda _, __: None
    loads: Mapping[str, RouteLoad] = {}
    is_offered: Callable[[str, str], bool] = lambda _, __: True
    members: Collection[str] = ()

    @classmethod
    def single(cls, provider: Provider, model: str) -> ModelRoutes:
        """Return the one route to a provider's model."""
        route = Route(provider, model)
        return cls(model=route.name, routes=(route,))

    @property
    def first(self) -> Route:
        """The route that is tried first."""
        return self.routes[0]

    def allowed_for(self, patterns: Sequence[str] | None) -> ModelRoutes:
        """Return the routes without the models of an alias that a key with these patterns may not use.

        All stay for a key that may use the alias by its name, and for one that may use none of them: then
        the operator has chosen the alias, such as that of titles. So do `fallbacks`.
        """
        if patterns is None or not self.members or matches_any(self.model, patterns):
            return self
        refused = {name for name in self.members if not matches_any(name, patterns)}
        if len(refused) == len(self.members):
            return self
        return replace(self, routes=[route for route in self.routes if route.name not in refused])

    def start_attempt(self, route: Route) -> RouteAttempt | None:
        """Count a request to a route; None for a route that is not balanced."""
        load = self.loads.get(route.name) if self.loads else None
        return None if load is None else load.start()

    def fail_attempt(self, attempt: RouteAttempt | None, error: DragomanError) -> None:
        """End an attempt with an error, which counts against its route if another might have answered."""
        if attempt is not None:
            if isinstance(error, ProviderError) and self.allows_fallback(error):
                attempt.fail()
            attempt.end()

    def request_for(self, request: ModelRequest, route: Route) -> ModelRequest:
        """Return the request as it is sent to a route: with its name for the model, and its options."""
        options = self.options.get(route.provider.name)
        if options is None:
            return request if request.model == route.model else replace(request, model=route.model)
        return replace(request, model=route.model, options={**options, **request.options})

    async def suggest_models(
        self, error: ProviderError, route: Route, *, patterns: Sequence[str] | None
    ) -> None:
        """Set the hint of an error for an unknown model of a provider.

        It names models that the provider lists and that a key with these patterns may use.
        """
        provider, model = route
        if error.hint or not isinstance(provider, RemoteProvider) or not is_unknown_model(error):
            return
        names = await provider.list_models()
        if model in names:
            return  # refused for another reason
        offered = [name for name in names if self.is_offered(provider.name, name)]
        if patterns is not None:
            offered = [name for name in offered if matches_any(f"{provider.name}/{name}", patterns)]
        error.hint = await describe_models(model, offered, provider=provider.name)


class RouteGroup(NamedTuple):
    """The members of an alias: routes and further groups. `balancer` is None for those tried in order."""

    members: Sequence[Route | RouteGroup]
    balancer: Balancer | None


class Routing:
    """Finds the routes of model names. `aliases` and `fallbacks` name `provider/model`, or another alias.

    The models of an alias are tried in their order, unless they are `BalancedModels`. A name that is neither
    an alias nor `provider/model` is the alias `*`, or a model of the provider `default`.
    `fallback_categories` are the error categories after which the next route is tried; `listed_models` has
    the models of providers that offer no others.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        aliases: Mapping[str, Sequence[str] | BalancedModels] | None = None,
        fallbacks: Mapping[str, Sequence[str]] | None = None,
        default: str | None = None,
        fallback_categories: Collection[str] = FALLBACK_CATEGORIES,
        listed_models: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.providers = providers
        self.clock: Callable[[], float] = time.monotonic
        """The clock of balanced aliases, in seconds."""
        self.aliases = {name: alias_models(alias) for name, alias in (aliases or {}).items()}
        self._balance = {
            name: alias for name, alias in (aliases or {}).items() if isinstance(alias, BalancedModels)
        }
        self._fallbacks = fallbacks or {}
        self._default = default
        self._fallback_categories = frozenset(fallback_categories)
        self._listed_models = listed_models or {}
        self._cache: dict[str, tuple[Route, ...] | RouteGroup] = {}
        self._members_cache: dict[str, Collection[str]] = {}
        self._groups: dict[str, RouteGroup] = {}
        self._loads: dict[str, RouteLoad] = {}

    def find_routes(self, model: str, *, select: bool = False) -> Sequence[Route]:
        """Return the routes for a model in the order to try them; those that cool down come last.

        `select`: a request follows, which a balanced alias counts. Raises NotFound, which names the models.
        """
        routes = self._routes(model)
        if isinstance(routes, RouteGroup):
            by_name = {route.name: route for route in self._order(routes, select=select)}
            return sorted(by_name.values(), key=self._is_passed_over)
        if len(routes) == 1:
            return routes
        return sorted(routes, key=is_cooling_down)

    def model_routes(
        self,
        model: str,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_fallback: Callable[[str, str], None] = lambda _, __: None,
        select: bool = True,
    ) -> ModelRoutes:
        """Return the routes for a model, with the default `options` of each provider. Raises NotFound."""
        return ModelRoutes(
            model=model,
            routes=self.find_routes(model, select=select),
            options=options or {},
            allows_fallback=self.allows_fallback,
            on_fallback=on_fallback,
            loads=self._loads,
            is_offered=self._lists,
            members=self._members(model) if self.aliases else (),
        )

    def _members(self, model: str) -> Collection[str]:
        """Return the names of the models of an alias; nothing for a single one."""
        members = self._members_cache.get(model)
        if members is None:
            targets = [*self._expand(model, ())]
            several = targets if len(targets) > 1 else ()
            members = frozenset(self._route(target, requested=model).name for target in several)
            if len(self._members_cache) < MAX_CACHED:
                self._members_cache[model] = members
        return members

    def entry_routes(self, model: str) -> Sequence[Route]:
        """Return the routes that may be tried first, even if their keys cool down. Raises NotFound."""
        routes = self._routes(model)
        return [*_first_routes(routes)] if isinstance(routes, RouteGroup) else routes[:1]

    def allows_fallback(self, error: DragomanError) -> bool:
        """Return whether the next route is tried after this error."""
        if isinstance(error, ProviderError):
            return error.category in self._fallback_categories or error.upstream_status == 404
        return isinstance(error, BadRequest)

    def _routes(self, model: str) -> tuple[Route, ...] | RouteGroup:
        routes = self._cache.get(model)
        if routes is None:
            routes = self._balanced(model) if self._balance else None
            routes = routes or tuple(self._resolve(model))
            if len(self._cache) < MAX_CACHED:
                self._cache[model] = routes
        return routes

    # ---- balanced aliases ------------------------------------------------------------------------------

    def _balanced(self, model: str) -> RouteGroup | None:
        """Return the group of a model that reaches a balanced alias; None for a model with a fixed order."""
        if not self._reaches_balance(model, ()):
            return None
        fallbacks = [self._member(name, (), requested=model) for name in self._fallback_names(model)]
        return RouteGroup([self._member(model, (), requested=model), *fallbacks], None)

    def _reaches_balance(self, name: str, parents: tuple[str, ...]) -> bool:
        alias = self._alias_of(name, parents)
        if alias is None:
            return False
        below = (*parents, alias)
        return alias in self._balance or any(
            self._reaches_balance(target, below) for target in self.aliases[alias]
        )

    def _member(self, name: str, parents: tuple[str, ...], *, requested: str) -> Route | RouteGroup:
        """Return the route or group of a name. An alias is the same group wherever it is used."""
        alias = self._alias_of(name, parents)
        if alias is None:
            route = self._route(name, requested=requested)
            if route.name not in self._loads:
                keys = route.provider.keys if isinstance(route.provider, RemoteProvider) else None
                cooldown = keys.cooldown if keys is not None else DEFAULT_COOLDOWN
                self._loads[route.name] = RouteLoad(cooldown=cooldown, clock=self.clock)
            return route
        if alias not in self._groups:
            targets, rule = list(dict.fromkeys(self.aliases[alias])), self._balance.get(alias)
            members = [self._member(target, (*parents, alias), requested=requested) for target in targets]
            weights = [rule.weights.get(target, 1.0) for target in targets] if rule is not None else ()
            self._groups[alias] = RouteGroup(
                members, None if rule is None else Balancer(rule.strategy, weights)
            )
        return self._groups[alias]

    def _order(self, member: Route | RouteGroup, *, select: bool) -> Sequence[Route]:
        """Return the routes of a group in the order of its balance."""
        if isinstance(member, Route):
            return (member,)
        ordered = [self._order(inner, select=False) for inner in member.members]
        chosen: Sequence[int] = range(len(ordered))
        if member.balancer is not None:
            firsts = [min(routes, key=self._is_passed_over) for routes in ordered]
            chosen = member.balancer.order(
                [self._loads[route.name] for route in firsts],
                healthy=[not self._is_passed_over(route) for route in firsts],
                select=select,
            )
        if select:
            ordered[chosen[0]] = self._order(member.members[chosen[0]], select=True)
        return [route for at in chosen for route in ordered[at]]

    def _is_passed_over(self, route: Route) -> bool:
        return self._loads[route.name].resting or is_cooling_down(route)

    # ---- names -----------------------------------------------------------------------------------------

    def _lists(self, provider: str, model: str) -> bool:
        return provider not in self._listed_models or model in self._listed_models[provider]

    def _resolve(self, model: str) -> Iterator[Route]:
        seen: set[str] = set()
        for name in (model, *self._fallback_names(model)):
            for target in self._expand(name, ()):
                if target not in seen:
                    seen.add(target)
                    yield self._route(target, requested=model)

    def _fallback_names(self, model: str) -> Sequence[str]:
        first = next(self._expand(model, ()))
        return self._fallbacks.get(model) or self._fallbacks.get(first) or self._fallbacks.get("*") or ()

    def _expand(self, name: str, parents: tuple[str, ...]) -> Iterator[str]:
        alias = self._alias_of(name, parents)
        if alias is None:
            yield name
        else:
            for target in self.aliases[alias]:
                yield from self._expand(target, (*parents, alias))

    def _alias_of(self, name: str, parents: tuple[str, ...]) -> str | None:
        """Return the alias that stands for a name; None for the name of a provider's model."""
        if name in self.aliases and name not in parents:
            return name
        provider, _, model = name.partition("/")
        if ANY_MODEL not in self.aliases or ANY_MODEL in parents or (provider in self.providers and model):
            return None
        return ANY_MODEL

    def _route(self, name: str, *, requested: str) -> Route:
        provider_name, slash, model = name.partition("/")
        provider = self.providers.get(provider_name)
        if (provider is None or not slash or not model) and self._default in self.providers:
            provider_name, model = str(self._default), name
            provider = self.providers[provider_name]
        is_complete = bool(model) and (bool(slash) or provider_name == self._default)
        if provider is not None and is_complete and self._lists(provider_name, model):
            return Route(provider, model)
        names = sorted([*self.aliases, *self._model_patterns()])
        existing = ", ".join([*names[:MAX_NAMES_SHOWN], *["…"][: len(names) > MAX_NAMES_SHOWN]]) or "none"
        raise NotFound(
            f"there is no model {requested!r}; the hub knows {existing}{self.suggest(requested)}",
            hint="a model is written provider/model, or is an alias of dragoman.yaml",
        )

    def suggest(self, name: str) -> str:
        """Return `; did you mean 'x'?` for a misspelt alias, provider or listed model, else ""."""
        first, _, model = name.partition("/")
        provider = find_similar_name(first, self.providers) if model else None
        names = {*self.aliases, *(name for name in self._model_patterns() if not name.endswith("/..."))}
        if provider is not None and provider not in self._listed_models:
            names.add(f"{provider}/{model}")
        return suggest(name, names - {name})

    def _model_patterns(self) -> Iterator[str]:
        """Yield `provider/...`, or each model of a provider that has no others."""
        for name in self.providers:
            models = self._listed_models.get(name)
            yield from [f"{name}/..."] if models is None else [f"{name}/{model}" for model in models]


def is_cooling_down(route: Route) -> bool:
    """Return whether all keys of the route's provider are cooling down, so that another is preferred."""
    return isinstance(route.provider, RemoteProvider) and route.provider.keys.exhausted


def alias_models(alias: Sequence[str] | BalancedModels) -> Sequence[str]:
    return alias.models if isinstance(alias, BalancedModels) else alias


def _first_routes(member: Route | RouteGroup) -> Iterator[Route]:
    """Yield the routes of a group that may be tried first."""
    if isinstance(member, Route):
        yield member
        return
    for inner in member.members if member.balancer is not None else member.members[:1]:
        yield from _first_routes(inner)


def require_model_access(patterns: Sequence[str] | None, model: str, *, routing: Routing) -> None:
    """Raise Forbidden unless a key with these patterns may use the model, by its alias or its full name.

    For an alias that balances, all models must be allowed. Cooldowns make no difference.
    """
    if patterns is None:
        return
    names = [route.name for route in routing.entry_routes(model)]
    if not matches_any(model, patterns) and not all(matches_any(name, patterns) for name in names):
        allowed = ", ".join(patterns) or "none"
        raise Forbidden(f"this key may not use the model {model!r}; it may use {allowed}")


def require_advisor_access(patterns: Sequence[str] | None, model: str, *, routing: Routing) -> None:
    """Raise NotFound or Forbidden unless a key with these patterns may use the model as an advisor.

    Requests name advisors as their provider does, so it is enough if the key may use an alias for it.
    """
    routing.entry_routes(model)  # the provider may have only some models
    aliases = [alias for alias in routing.aliases if matches_any(alias, patterns or ())]
    if not any(route.name == model for alias in aliases for route in routing.entry_routes(alias)):
        require_model_access(patterns, model, routing=routing)


def matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)

"""Routing: which providers answer for the name of a model, in which order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest, DragomanError, Forbidden, NotFound, ProviderError
from dragoman.model_request import ModelRequest
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.suggestions import find_similar_name, suggest

FALLBACK_CATEGORIES: tuple[str, ...] = ("rate_limit", "overloaded", "timeout", "network", "api_error", "auth")
MAX_CACHED = 2048
MAX_NAMES_SHOWN = 50  # in an error


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

    `model` is the requested name, `options` are given to each provider by its name. `on_fallback` is called
    with the names of the route that failed and of the next one.
    """

    model: str
    routes: Sequence[Route]
    options: Mapping[str, Mapping[str, Any]] = {}
    allows_fallback: Callable[[DragomanError], bool] = lambda _: False
    on_fallback: Callable[[str, str], None] = lambda _, __: None

    @classmethod
    def single(cls, provider: Provider, model: str) -> ModelRoutes:
        """Return the one route to a provider's model."""
        route = Route(provider, model)
        return cls(model=route.name, routes=(route,))

    @property
    def first(self) -> Route:
        """The route that is tried first."""
        return self.routes[0]

    def request_for(self, request: ModelRequest, route: Route) -> ModelRequest:
        """Return the request as it is sent to a route: with its name for the model, and its options."""
        options = self.options.get(route.provider.name)
        if options is None:
            return request if request.model == route.model else replace(request, model=route.model)
        return replace(request, model=route.model, options={**options, **request.options})


class Routing:
    """What leads where. `aliases` and `fallbacks` name models as `provider/model`, or by another alias.

    `default` is the provider of names that are neither an alias nor `provider/model`; `fall_on` the error
    categories on which the next in the order is asked; `only` the models of providers that have no others.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        *,
        aliases: Mapping[str, Sequence[str]] | None = None,
        fallbacks: Mapping[str, Sequence[str]] | None = None,
        default: str | None = None,
        fallback_categories: Collection[str] = FALLBACK_CATEGORIES,
        listed_models: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.providers = providers
        self.aliases = aliases or {}
        self._fallbacks = fallbacks or {}
        self._default = default
        self._fallback_categories = frozenset(fallback_categories)
        self._listed_models = listed_models or {}
        self._cache: dict[str, tuple[Route, ...]] = {}

    def find_routes(self, model: str) -> Sequence[Route]:
        """The routes for a model, first the one to take; those whose keys all rest come last.

        NotFound says what there is.
        """
        routes = self._routes(model)
        if len(routes) == 1:
            return routes
        return sorted(routes, key=is_cooling_down)

    def model_routes(
        self,
        model: str,
        *,
        options: Mapping[str, Mapping[str, Any]] | None = None,
        on_fallback: Callable[[str, str], None] = lambda _, __: None,
    ) -> ModelRoutes:
        """Return the routes for a model, with what each provider is always given. NotFound."""
        return ModelRoutes(
            model=model,
            routes=self.find_routes(model),
            options=options or {},
            allows_fallback=self.allows_fallback,
            on_fallback=on_fallback,
        )

    def first_route(self, model: str) -> Route:
        """The route that stands first, whether its keys rest or not. NotFound."""
        return self._routes(model)[0]

    def allows_fallback(self, error: DragomanError) -> bool:
        """Whether the next route may do better."""
        if isinstance(error, ProviderError):
            return error.category in self._fallback_categories or error.upstream_status == 404
        return isinstance(error, BadRequest)

    def _routes(self, model: str) -> Sequence[Route]:
        routes = self._cache.get(model)
        if routes is None:
            routes = tuple(self._resolve(model))
            if len(self._cache) < MAX_CACHED:
                self._cache[model] = routes
        return routes

    def _lists(self, provider: str, model: str) -> bool:
        return provider not in self._listed_models or model in self._listed_models[provider]

    def _resolve(self, model: str) -> Iterator[Route]:
        seen: set[str] = set()
        names = [*self._expand(model, ())]
        first = names[0]
        names += self._fallbacks.get(model) or self._fallbacks.get(first) or self._fallbacks.get("*") or ()
        for name in names:
            for target in self._expand(name, ()):
                if target not in seen:
                    seen.add(target)
                    yield self._route(target, requested=model)

    def _expand(self, name: str, parents: tuple[str, ...]) -> Iterator[str]:
        if name in self.aliases and name not in parents:
            for target in self.aliases[name]:
                yield from self._expand(target, (*parents, name))
        else:
            yield name

    def _route(self, name: str, *, requested: str) -> Route:
        place, slash, model = name.partition("/")
        provider = self.providers.get(place)
        if (provider is None or not slash or not model) and self._default in self.providers:
            place, model = str(self._default), name
            provider = self.providers[place]
        if provider is not None and model and (slash or place == self._default) and self._lists(place, model):
            return Route(provider, model)
        names = sorted([*self.aliases, *self._model_patterns()])
        existing = ", ".join([*names[:MAX_NAMES_SHOWN], *["…"][: len(names) > MAX_NAMES_SHOWN]]) or "none"
        raise NotFound(
            f"there is no model {requested!r}; the hub knows {existing}{self.suggest(requested)}",
            hint="a model is written provider/model, or is an alias of dragoman.yaml",
        )

    def suggest(self, name: str) -> str:
        """Return `; did you mean 'x'?` for a misspelt alias, provider or listed model, else ""."""
        place, _, model = name.partition("/")
        provider = find_similar_name(place, self.providers) if model else None
        names = {*self.aliases, *(each for each in self._model_patterns() if not each.endswith("/..."))}
        if provider is not None and provider not in self._listed_models:
            names.add(f"{provider}/{model}")
        return suggest(name, names - {name})

    def _model_patterns(self) -> Iterator[str]:
        """Yield `provider/...`, or each model of a provider that has no others."""
        for place in self.providers:
            models = self._listed_models.get(place)
            yield from [f"{place}/..."] if models is None else [f"{place}/{model}" for model in models]


def is_cooling_down(route: Route) -> bool:
    """Return whether all keys of the route's provider are cooling down, so that another should be asked."""
    return isinstance(route.provider, RemoteProvider) and route.provider.keys.exhausted


def require_model_access(patterns: Sequence[str] | None, model: str, *, routing: Routing) -> None:
    """Forbidden unless a key with these patterns may ask for the model, by its alias or its full name.

    Which provider rests makes no difference.
    """
    if patterns is None:
        return
    names = (model, routing.first_route(model).name)
    if not any(fnmatchcase(name, pattern) for pattern in patterns for name in names):
        allowed = ", ".join(patterns) or "none"
        raise Forbidden(f"this key may not ask the model {model!r}; it may ask {allowed}")

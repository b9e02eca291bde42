"""Routing: which providers answer for the name of a model, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from dragoman.errors import BadRequest, DragomanError, Forbidden, NotFound, ProviderError
from dragoman.providers.provider import Provider

FALL_ON: tuple[str, ...] = ("rate_limit", "overloaded", "timeout", "network", "api_error", "auth")
REMEMBERED = 2048


class Route(NamedTuple):
    """A provider and its own name for the model."""

    provider: Provider
    model: str

    @property
    def name(self) -> str:
        """`provider/model`."""
        return f"{self.provider.name}/{self.model}"


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
        fall_on: Collection[str] = FALL_ON,
        only: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        self.providers = providers
        self.aliases = aliases or {}
        self._fallbacks = fallbacks or {}
        self._default = default
        self._fall_on = frozenset(fall_on)
        self._only = only or {}
        self._found: dict[str, tuple[Route, ...]] = {}

    def find(self, asked: str) -> Sequence[Route]:
        """The routes for a model, first the one to take; those whose keys all rest come last.

        NotFound says what there is.
        """
        routes = self._routes(asked)
        if len(routes) == 1:
            return routes
        return sorted(routes, key=lambda route: route.provider.resting)

    def first(self, asked: str) -> Route:
        """The route that stands first, whether its keys rest or not. NotFound."""
        return self._routes(asked)[0]

    def falls(self, error: DragomanError) -> bool:
        """Whether the next route may do better."""
        if isinstance(error, ProviderError):
            return error.category in self._fall_on or error.upstream_status == 404
        return isinstance(error, BadRequest)

    def _routes(self, asked: str) -> Sequence[Route]:
        routes = self._found.get(asked)
        if routes is None:
            routes = tuple(self._resolve(asked))
            if len(self._found) < REMEMBERED:
                self._found[asked] = routes
        return routes

    def _has(self, place: str, model: str) -> bool:
        return place not in self._only or model in self._only[place]

    def _resolve(self, asked: str) -> Iterator[Route]:
        seen: set[str] = set()
        names = [*self._expand(asked, ())]
        first = names[0]
        names += self._fallbacks.get(asked) or self._fallbacks.get(first) or self._fallbacks.get("*") or ()
        for name in names:
            for target in self._expand(name, ()):
                if target not in seen:
                    seen.add(target)
                    yield self._route(target, asked=asked)

    def _expand(self, name: str, above: tuple[str, ...]) -> Iterator[str]:
        if name in self.aliases and name not in above:
            for target in self.aliases[name]:
                yield from self._expand(target, (*above, name))
        else:
            yield name

    def _route(self, name: str, *, asked: str) -> Route:
        place, slash, model = name.partition("/")
        provider = self.providers.get(place)
        if (provider is None or not slash or not model) and self._default in self.providers:
            place, model = str(self._default), name
            provider = self.providers[place]
        if provider is not None and model and (slash or place == self._default) and self._has(place, model):
            return Route(provider, model)
        known = ", ".join(sorted([*self.aliases, *(f"{place}/..." for place in self.providers)])) or "none"
        raise NotFound(
            f"there is no model {asked!r}; the hub knows {known}",
            hint="a model is written provider/model, or is an alias of dragoman.yaml",
        )


def permit(patterns: Sequence[str] | None, asked: str, *, routing: Routing) -> None:
    """Forbidden unless a key with these patterns may ask for the model, by its alias or its full name.

    Which provider rests makes no difference.
    """
    if patterns is None:
        return
    names = (asked, routing.first(asked).name)
    if not any(fnmatchcase(name, pattern) for pattern in patterns for name in names):
        allowed = ", ".join(patterns) or "none"
        raise Forbidden(f"this key may not ask the model {asked!r}; it may ask {allowed}")

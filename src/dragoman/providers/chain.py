"""A chain of providers: the next one is asked when the one before fails before it has said anything."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from msgspec.structs import replace

from dragoman.errors import BadRequest, ProviderError, Unavailable
from dragoman.events import Event
from dragoman.providers.routing import Route, Routing
from dragoman.request import ModelRequest

log = logging.getLogger(__name__)
Batches: TypeAlias = AsyncGenerator[Sequence[Event], None]


class Chain:
    """A `Provider` out of the routes of one model. `options` are what each provider is always given."""

    def __init__(
        self,
        asked: str,
        routing: Routing,
        *,
        options: Mapping[str, Mapping[str, Any]],
        fell: Callable[[str, str], None],
    ) -> None:
        self._routes = routing.find(asked)
        self.asked = self._routes[0]
        """The route that was asked last."""
        self._routing = routing
        self._options = options
        self._fell = fell

    @property
    def routes(self) -> Sequence[Route]:
        """All that may be asked, in order."""
        return self._routes

    @property
    def first(self) -> Route:
        """The route that is asked first."""
        return self._routes[0]

    @property
    def name(self) -> str:
        """See `Provider.name`."""
        return self.first.provider.name

    @property
    def family(self) -> str:
        """See `Provider.family`."""
        return self.first.provider.family

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return all(route.provider.resting for route in self._routes)

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return self.first.provider.check(self._fit(request, self.first))

    async def stream(self, request: ModelRequest) -> Batches:
        """See `Provider.stream`. The request's model is that of the route, whatever it says."""
        answer, first = await self._begin(request)
        async with aclosing(answer):
            if first is not None:
                yield first
            async for batch in answer:
                yield batch

    async def close(self) -> None:
        """Nothing: the providers belong to others."""

    async def _begin(self, request: ModelRequest) -> tuple[Batches, Sequence[Event] | None]:
        """The first answer that says something, and its first batch."""
        for route, other in zip(self._routes, [*self._routes[1:], None], strict=True):
            self.asked = route
            answer = route.provider.stream(self._fit(request, route))
            try:
                return answer, await anext(answer, None)
            except (ProviderError, BadRequest) as error:
                if other is None or not self._routing.falls(error):
                    raise as_provider_error(error) from None
                log.warning("%s failed (%s), now asking %s", route.name, error.message, other.name)
                self._fell(route.name, other.name)
        raise Unavailable("no provider is left to ask")

    def _fit(self, request: ModelRequest, route: Route) -> ModelRequest:
        options = {**self._options.get(route.provider.name, {}), **request.options}
        return replace(request, model=route.model, options=options)


def as_provider_error(error: ProviderError | BadRequest) -> ProviderError:
    """What a provider cannot be told is a failure of the model's answer for whoever follows it."""
    if isinstance(error, ProviderError):
        return error
    return ProviderError(error.message, category="bad_request", hint=error.hint)

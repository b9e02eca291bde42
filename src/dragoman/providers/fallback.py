"""A chain of providers: the next one is asked when the one before fails before it has said anything."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias

from msgspec.structs import replace

from dragoman.errors import BadRequest, ProviderError, Unavailable
from dragoman.events import Event
from dragoman.model_request import ModelRequest
from dragoman.providers.routing import Route, Routing

log = logging.getLogger(__name__)
BatchStream: TypeAlias = AsyncGenerator[Sequence[Event], None]


class FallbackProvider:
    """A `Provider` out of the routes of one model. `options` are what each provider is always given."""

    def __init__(
        self,
        model: str,
        routing: Routing,
        *,
        options: Mapping[str, Mapping[str, Any]],
        on_fallback: Callable[[str, str], None],
    ) -> None:
        self._routes = routing.find_routes(model)
        self.current_route = self._routes[0]
        """The route that was asked last."""
        self._routing = routing
        self._options = options
        self._on_fallback = on_fallback

    @property
    def routes(self) -> Sequence[Route]:
        """All that may be asked, in order."""
        return self._routes

    @property
    def first_route(self) -> Route:
        """The route that is asked first."""
        return self._routes[0]

    @property
    def name(self) -> str:
        """See `Provider.name`."""
        return self.first_route.provider.name

    @property
    def family(self) -> str:
        """See `Provider.family`."""
        return self.first_route.provider.family

    @property
    def resting(self) -> bool:
        """See `Provider.resting`."""
        return all(route.provider.resting for route in self._routes)

    def check(self, request: ModelRequest) -> Sequence[str]:
        """See `Provider.check`."""
        return self.first_route.provider.check(self._request_for(request, self.first_route))

    async def stream(self, request: ModelRequest) -> BatchStream:
        """See `Provider.stream`. The request's model is that of the route, whatever it says."""
        answer, first = await self._start(request)
        async with aclosing(answer):
            if first is not None:
                yield first
            async for batch in answer:
                yield batch

    async def close(self) -> None:
        """Nothing: the providers belong to others."""

    async def _start(self, request: ModelRequest) -> tuple[BatchStream, Sequence[Event] | None]:
        """The first answer that says something, and its first batch."""
        for route, other in zip(self._routes, [*self._routes[1:], None], strict=True):
            self.current_route = route
            answer = route.provider.stream(self._request_for(request, route))
            try:
                return answer, await anext(answer, None)
            except (ProviderError, BadRequest) as error:
                if other is None or not self._routing.allows_fallback(error):
                    raise as_provider_error(error) from None
                log.warning("%s failed (%s), now asking %s", route.name, error.message, other.name)
                self._on_fallback(route.name, other.name)
        raise Unavailable("no provider is left to ask")

    def _request_for(self, request: ModelRequest, route: Route) -> ModelRequest:
        options = {**self._options.get(route.provider.name, {}), **request.options}
        return replace(request, model=route.model, options=options)


def as_provider_error(error: ProviderError | BadRequest) -> ProviderError:
    """What a provider cannot be told is a failure of the model's answer for whoever follows it."""
    if isinstance(error, ProviderError):
        return error
    return ProviderError(error.message, category="bad_request", hint=error.hint)

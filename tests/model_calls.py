"""Reads model calls to their end, as the gateway and runs do."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from dragoman.accounts.model_call import ModelCall
from dragoman.accounts.payment import Payment
from dragoman.accounts.upstream_answer import Batch
from dragoman.model_request import ModelRequest
from dragoman.providers.provider import Provider
from dragoman.providers.routing import ModelRoutes
from dragoman.tracing.interface import NO_TRACING, Tracing


async def read_call(call: ModelCall[Batch]) -> AsyncGenerator[Batch, None]:
    """Yield the batches of a call; leaving it early aborts the call."""
    try:
        batch = await call.begin()
        while batch is not None:
            yield batch
            batch = await call.next()
        call.end()
    finally:
        await call.leave()


def ask_model(
    request: ModelRequest, provider: Provider, *, tracing: Tracing = NO_TRACING
) -> AsyncGenerator[Batch, None]:
    """Yield the batches of a call that nobody pays for."""
    routes = ModelRoutes.single(provider, request.model)
    return read_call(ModelCall.for_events(Payment(), request, routes=routes, tracing=tracing))

"""Paths of the Responses API, and the handlers behind them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from dragoman.config import Config
from dragoman.http.asgi_exchange import ErrorHandler, Handler
from dragoman.runs.registry import RunRegistry
from dragoman.server.gateway.handlers import Gateway, send_error
from dragoman.server.gateway.responses.agents import AgentResponses
from dragoman.server.gateway.responses.handlers import RESPONSES, ResponseHandlers
from dragoman.server.gateway.responses.state import ResponseStates, StateLimits
from dragoman.store.store import Store

RESPONSES_PATH = "/v1/responses"


def response_routes(
    handlers: ResponseHandlers,
) -> Iterator[tuple[str, Mapping[str, Handler], ErrorHandler]]:
    """The paths of the Responses API."""
    on_error = partial(send_error, dialect=RESPONSES)
    yield RESPONSES_PATH, {"POST": handlers.create}, on_error
    yield "/v1/responses/input_tokens", {"POST": handlers.input_tokens}, on_error
    yield "/v1/responses/compact", {"POST": handlers.compact}, on_error
    yield "/v1/responses/{id}", {"GET": handlers.get, "DELETE": handlers.delete}, on_error
    yield "/v1/responses/{id}/cancel", {"POST": handlers.cancel}, on_error
    yield "/v1/responses/{id}/input_items", {"GET": handlers.input_items}, on_error
    conversations = handlers.conversations
    one = {"GET": conversations.get, "POST": conversations.update, "DELETE": conversations.delete}
    item = {"GET": conversations.get_item, "DELETE": conversations.delete_item}
    yield "/v1/conversations", {"POST": conversations.create}, on_error
    yield "/v1/conversations/{id}", one, on_error
    items = {"GET": conversations.list_items, "POST": conversations.add_items}
    yield "/v1/conversations/{id}/items", items, on_error
    yield "/v1/conversations/{id}/items/{item}", item, on_error


def response_states(config: Config, store: Store) -> ResponseStates:
    """Return the service that finds and stores the responses that clients refer to."""
    limits = config.limits
    return ResponseStates(
        store.responses,
        store.conversations,
        limits=StateLimits(
            response=limits.stored_response, owner=limits.owner_responses, context=limits.gateway_body
        ),
    )


def build_response_handlers(
    config: Config, gateway: Gateway, *, runs: RunRegistry, store: Store
) -> ResponseHandlers:
    """Return the handlers of the Responses API, for models and for agents."""
    states = response_states(config, store)
    agents = AgentResponses(runs, store, states=states, keep_alive=config.keep_alive)
    return ResponseHandlers(gateway, states, agents=agents)

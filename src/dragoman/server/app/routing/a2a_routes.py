"""The paths of A2A: JSON-RPC at the address of an agent, REST below it, and agent cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dragoman.config import Config
from dragoman.http.asgi_exchange import ErrorHandler, Handler
from dragoman.runs.registry import RunRegistry
from dragoman.server.a2a.handlers import A2aHandlers, A2aServices, A2aSettings, send_rest_error
from dragoman.server.a2a.push import PushConfigs
from dragoman.server.app.push import build_push_post, push_settings
from dragoman.server.app.services import HubServices
from dragoman.server.approvals import AnswerApproval
from dragoman.server.auth import Auth
from dragoman.server.http.endpoint import send_error

CARD = "/.well-known/agent-card.json"


def a2a_routes(a2a: A2aHandlers) -> Iterator[tuple[str, Mapping[str, Handler], ErrorHandler]]:
    """The paths that need a key with the scope `chat`, each with its format of errors."""
    yield "/a2a/{agent}", {"POST": a2a.rpc}, send_error
    yield "/a2a/{agent}/message:send", {"POST": a2a.send}, send_rest_error
    yield "/a2a/{agent}/message:stream", {"POST": a2a.stream}, send_rest_error
    yield "/a2a/{agent}/tasks", {"GET": a2a.list}, send_rest_error
    yield "/a2a/{agent}/tasks/{id}:cancel", {"POST": a2a.cancel}, send_rest_error
    yield "/a2a/{agent}/tasks/{id}:subscribe", {"GET": a2a.subscribe, "POST": a2a.subscribe}, send_rest_error
    yield "/a2a/{agent}/tasks/{id}", {"GET": a2a.get}, send_rest_error
    configs = "/a2a/{agent}/tasks/{id}/pushNotificationConfigs"
    yield configs, {"GET": a2a.list_push_configs, "POST": a2a.create_push_config}, send_rest_error
    one = {"GET": a2a.get_push_config, "DELETE": a2a.delete_push_config}
    yield f"{configs}/{{config}}", one, send_rest_error
    yield "/a2a/{agent}/extendedAgentCard", {"GET": a2a.extended_card}, send_rest_error


def card_routes(a2a: A2aHandlers) -> Iterator[tuple[str, Mapping[str, Handler]]]:
    """The paths of cards, which need no key for public agents."""
    yield CARD, {"GET": a2a.card}
    yield f"/a2a/{{agent}}{CARD}", {"GET": a2a.card}


def build_a2a_handlers(
    config: Config,
    services: HubServices,
    *,
    runs: RunRegistry,
    auth: Auth,
    answer_approval: AnswerApproval,
) -> A2aHandlers:
    """Build the handlers. Raises ConfigError when the secret of push notifications is not set."""
    environment = services.environment
    settings = push_settings(config, environment.environ)
    return A2aHandlers(
        A2aServices(
            runs=runs,
            store=services.store,
            access=services.shared_access,
            answer_approval=answer_approval,
        ),
        auth=auth,
        settings=a2a_settings(config, requires_key=environment.require_keys),
        push=PushConfigs(services.store, build_push_post(config), settings=settings),
    )


def a2a_settings(config: Config, *, requires_key: bool) -> A2aSettings:
    """Return the settings of A2A."""
    return A2aSettings(
        agents=config.a2a.agents,
        url=config.a2a.url,
        requires_key=requires_key,
        body=config.limits.body,
        part=config.limits.part,
        keep_alive=config.keep_alive,
    )

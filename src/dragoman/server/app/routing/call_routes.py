"""The API of calls, approvals and standing rules of a served hub."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from dragoman.server.app.routing.shared_routes import Routes, approval_routes, call_routes, policy_routes
from dragoman.server.app.services import HubServices
from dragoman.server.approvals import AnswerApproval, ApprovalHandlers
from dragoman.server.call_trees.json_lines import CallStreamHandlers
from dragoman.server.calls import Abort, CallHandlers
from dragoman.server.standing_rules import PolicyRuleHandlers


class CallApi(msgspec.Struct, frozen=True, kw_only=True):
    """The handlers of calls, approvals and standing rules."""

    calls: CallHandlers
    streams: CallStreamHandlers
    approvals: ApprovalHandlers
    rules: PolicyRuleHandlers


def build_call_api(
    services: HubServices,
    *,
    abort: Abort,
    answer: AnswerApproval,
    flush_usage: Callable[[], Awaitable[None]],
) -> CallApi:
    """Build the handlers. `flush_usage` writes pending usage records."""
    store = services.store
    return CallApi(
        calls=CallHandlers(store, abort=abort, source=services.operation_source, flush_usage=flush_usage),
        streams=CallStreamHandlers(store, flush_usage=flush_usage),
        approvals=ApprovalHandlers(
            store.approvals, answer=answer, sessions=store.sessions, inbox=store.inbox
        ),
        rules=PolicyRuleHandlers(store, access=services.calls.access_control, registry=services.registry),
    )


def call_api_routes(api: CallApi) -> Routes:
    """Yield the paths of these handlers."""
    yield from call_routes(api.calls, api.streams)
    yield from approval_routes(api.approvals)
    yield from policy_routes(api.rules)

"""Paths under `/api` whose handlers need no running hub: the served hub and `offline_api` share them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from dragoman.http.asgi_exchange import Handler
from dragoman.server.accounts.keys import KeyHandlers
from dragoman.server.accounts.usage import UsageHandlers
from dragoman.server.approvals import ApprovalHandlers
from dragoman.server.artifacts import ArtifactHandlers
from dragoman.server.call_trees.json_lines import CallStreamHandlers
from dragoman.server.calls import CallHandlers
from dragoman.server.http.endpoint import RequiredScope
from dragoman.server.operations import OperationHandlers
from dragoman.server.runs import RunHandlers
from dragoman.server.sessions.sessions import SessionHandlers
from dragoman.server.standing_rules import PolicyRuleHandlers

Routes: TypeAlias = Iterator[tuple[str, Mapping[str, Handler], RequiredScope]]
"""Path, handler by method, and the scope that a key needs (None: each handler checks for itself)."""


def session_routes(sessions: SessionHandlers) -> Routes:
    yield "/api/sessions", {"GET": sessions.list, "POST": sessions.create}, "chat"
    yield (
        "/api/sessions/{id}",
        {"GET": sessions.get, "PATCH": sessions.update, "DELETE": sessions.delete},
        "chat",
    )
    yield "/api/sessions/{id}/messages", {"GET": sessions.messages}, "chat"
    yield "/api/sessions/{id}/queue", {"GET": sessions.queue}, "chat"
    yield "/api/sessions/{id}/queue/{queued}", {"DELETE": sessions.withdraw}, "chat"
    yield "/api/search", {"GET": sessions.search}, "chat"


def run_routes(runs: RunHandlers) -> Routes:
    yield "/api/runs", {"GET": runs.list}, "chat"
    yield "/api/runs/{id}", {"GET": runs.get}, "chat"
    yield "/api/runs/{id}/prompt", {"GET": runs.prompt}, "chat"
    yield "/api/runs/{id}/stop", {"POST": runs.stop}, "chat"


def operation_routes(operations: OperationHandlers) -> Routes:
    yield "/api/operations", {"GET": operations.list}, "operations"
    yield "/api/operations/{id}", {"GET": operations.get}, "operations"
    yield "/api/operations/{id}/call", {"POST": operations.call}, "operations"


def usage_routes(usage: UsageHandlers) -> Routes:
    yield "/api/usage", {"GET": usage.get}, None


def call_routes(calls: CallHandlers, streams: CallStreamHandlers) -> Routes:
    yield "/api/calls", {"GET": calls.list}, None
    yield "/api/calls/{id}", {"GET": calls.get}, None
    yield "/api/calls/{id}/tree", {"GET": calls.tree}, None
    yield "/api/calls/{id}/nodes", {"GET": streams.nodes}, None
    yield "/api/calls/{id}/export", {"GET": streams.export}, None
    yield "/api/calls/{id}/abort", {"POST": calls.abort}, None


def approval_routes(approvals: ApprovalHandlers) -> Routes:
    yield "/api/approvals", {"GET": approvals.list}, None
    yield "/api/approvals/answers", {"POST": approvals.answer_many}, None
    yield "/api/approvals/{id}", {"GET": approvals.get, "POST": approvals.answer}, None


def policy_routes(rules: PolicyRuleHandlers) -> Routes:
    yield "/api/policy/rules", {"GET": rules.list, "POST": rules.add}, None
    yield "/api/policy/rules/{id}", {"DELETE": rules.revoke}, None


def key_routes(keys: KeyHandlers) -> Routes:
    yield "/api/keys", {"GET": keys.list, "POST": keys.create}, "admin"
    yield "/api/keys/{id}", {"GET": keys.get, "PATCH": keys.update, "DELETE": keys.revoke}, "admin"
    yield "/api/keys/{id}/rotate", {"POST": keys.rotate}, "admin"


def artifact_routes(artifacts: ArtifactHandlers) -> Routes:
    yield "/api/artifacts/{id}", {"GET": artifacts.get}, None
    yield "/api/artifacts/{id}/content", {"GET": artifacts.content}, None

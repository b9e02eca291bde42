"""HTTP handler that explains the policy: what decides about a call, without making it."""

from __future__ import annotations

from typing import Any

import msgspec

from dragoman.errors import BadRequest, InvalidInput, NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.operations.authorization import restrict_owner, visible_owner
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.explanation import match_to_json
from dragoman.operations.registry import Registry

MAX_BODY = 262_144
MAX_NAME = 500


class ExplainBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A call to explain. `owner` and `key` are the caller's own unless an administrator names others."""

    operation: str
    input: dict[str, Any] | None = None
    agent: str | None = None
    owner: str | None = None
    key: str | None = None


class PolicyHandlers:
    """Handler of `/api/policy/explain`."""

    def __init__(self, calls: Calls, registry: Registry) -> None:
        self._calls = calls
        self._registry = registry

    async def explain(self, exchange: Exchange) -> None:
        """Return the decision about a call, the rule that makes it, and all rules that match.

        An operation that the caller can neither see nor call is a 404, as everywhere.
        """
        caller = exchange.identity
        body = parse_body(await exchange.read_json(MAX_BODY))
        subject = subject_of(body, caller)
        operation = self._find(body, caller, subject=subject)
        context = Context(identity=subject, agent=body.agent)
        access = self._calls.access_control
        matches = access.policy.matches(operation, identity=subject, agent=body.agent)
        found = [match_to_json(each) for each in matches]
        verdict = access.evaluate(operation, context)
        deciding = found[0]
        if verdict.decision != deciding["decision"]:  # a restriction is stricter than the policy
            reason = verdict.rule.reason if verdict.rule is not None else None
            source = "a restriction of the agent" if body.agent else "a restriction of the hub"
            deciding = {"decision": verdict.decision, "pattern": None, "source": source, "reason": reason}
        await exchange.respond(
            200,
            {
                "operation": operation.id,
                "effect": operation.policy_effect,
                "agent": body.agent,
                "owner": subject.owner,
                "key": subject.key_id,
                **deciding,
                "asks": verdict.decision == "ask" or operation.make_question is not None,
                "matches": found,
                "problems": None if body.input is None else argument_problems(operation, body.input),
            },
        )

    def _find(self, body: ExplainBody, caller: Identity, *, subject: Identity) -> Operation:
        if caller.may("admin"):
            return self._registry.get(body.operation, owner=subject.owner)
        return self._calls.get_operation(body.operation, Context(identity=caller))


def parse_body(payload: Any) -> ExplainBody:
    """Return the call that a request is about. BadRequest."""
    try:
        body = msgspec.convert(payload, ExplainBody)
    except msgspec.ValidationError as error:
        raise BadRequest(f"the body is invalid: {error}", hint='send {"operation": "mail.send"}') from None
    for field in ("operation", "agent", "owner", "key"):
        text = getattr(body, field)
        if text is not None and not 0 < len(text) <= MAX_NAME:
            raise BadRequest(f"{field} must be 1 to {MAX_NAME} characters", field=field)
    return body


def subject_of(body: ExplainBody, caller: Identity) -> Identity:
    """Return the identity whose call is explained. Forbidden for another owner's, unless "admin"."""
    if body.owner is None and body.key in (None, caller.key_id):
        return caller
    visible = visible_owner(caller)
    restrict_owner({} if body.owner is None else {"owner": body.owner}, visible)
    if visible is not None and body.key not in (None, caller.key_id):
        raise NotFound(f"there is no key {body.key!r} of yours", hint="use a key with the scope admin")
    return Identity(body.owner or caller.owner, body.key)


def argument_problems(operation: Operation, input: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is wrong with the arguments, by the operation's schema."""
    try:
        operation.parse(input)
    except InvalidInput as error:
        return list(error.problems)
    return []

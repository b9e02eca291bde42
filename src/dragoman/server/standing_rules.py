"""HTTP handlers of standing rules: list the calls that people always allow, add rules, revoke them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import BadRequest, Conflict, Forbidden, NotFound
from dragoman.http.asgi_exchange import Exchange
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.operations.approval import (
    ApprovalItem,
    ApprovalRequest,
    approval_not_found,
    involves_owner,
    may_answer,
)
from dragoman.operations.authorization import RUN_DATA_SCOPES, is_visible, require_scope, visible_owner
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.standing_rules import StandingRule, standing_items
from dragoman.operations.registry import Registry
from dragoman.store.standing_rules import rule_not_found
from dragoman.store.store import Store

Json: TypeAlias = dict[str, Any]
MAX_BODY = 4_096


class RuleBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The body of a new rule: the request whose call is always allowed from now on."""

    approval_id: str


class PolicyRuleHandlers:
    """Handlers of `/api/policy/rules`. A key sees its owner's rules; with the scope "admin" it sees all."""

    def __init__(
        self,
        store: Store,
        *,
        access: AccessControl | None = None,
        registry: Registry | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Without `access` and `registry` rules can be listed and revoked, but not added."""
        self._store = store
        self._access = access
        self._registry = registry
        self._clock = clock

    async def list(self, exchange: Exchange) -> None:
        """List standing rules, the newest first."""
        require_scope(exchange.identity, *RUN_DATA_SCOPES)
        found = await self._store.policy_rules.list(owner=visible_owner(exchange.identity))
        await exchange.respond(200, {"rules": [self._to_json(rule) for rule in reversed(found)]})

    async def add(self, exchange: Exchange) -> None:
        """Always allow what a request asks about: for admins, and owners who may answer for their calls."""
        caller = exchange.identity
        require_scope(caller, "chat", "admin")
        try:
            body = msgspec.convert(await exchange.read_json(MAX_BODY), RuleBody)
        except msgspec.ValidationError as error:
            raise BadRequest(f"the body is invalid: {error}", hint='send {"approvalId": "apr_…"}') from None
        approval = await self._store.approvals.get(body.approval_id)
        if visible_owner(caller) is not None and not involves_owner(approval, caller.owner):
            raise approval_not_found(approval.id)
        check_may_add(approval, caller)
        added = [
            await self._store.policy_rules.add(self._make_rule(item, approval, by=caller))
            for item in self._asked_items(approval)
        ]
        await self.reload()
        await exchange.respond(201, {"rules": [self._to_json(rule) for rule in added]})

    async def revoke(self, exchange: Exchange) -> None:
        """Revoke a rule: the next call is asked about again."""
        caller, id = exchange.identity, exchange.path_params["id"]
        require_scope(caller, "chat", "admin")
        rule = await self._store.policy_rules.get(id)
        if not is_visible(rule.owner, to=visible_owner(caller)):
            raise rule_not_found(id)
        await self._store.policy_rules.delete(rule, by=caller)
        await self.reload()
        await exchange.respond(204)

    async def reload(self) -> None:
        """Load the stored rules into this process."""
        if self._access is not None:
            self._access.standing.replace(await self._store.policy_rules.list())

    def _asked_items(self, approval: ApprovalRequest) -> Sequence[ApprovalItem]:
        """Return the calls of a request that a rule can allow. Raises Conflict when there is none."""
        if self._access is None or self._registry is None:
            raise Conflict("rules are added in a running hub", hint="name it with --hub")
        items = standing_items(approval)
        if not items:
            raise Conflict(
                f"what approval {approval.id!r} asks cannot always be allowed",
                hint="questions are asked each time; the configuration can allow calls of sub-agents",
            )
        for item in items:
            context = Context(
                identity=Identity(approval.owner, approval.key_id), agent=item.agent or approval.agent
            )
            operation = self._find_operation(item.operation, context)
            if operation is None or operation.call_provider != item.provider:
                raise Conflict(
                    f"{item.operation} is not what it was when approval {approval.id!r} was requested",
                    hint="make the call again, and decide about what it is now",
                )
            if self._access.evaluate(operation, context).decision != "ask":
                raise Conflict(
                    f"no rule of the policy asks about {item.operation}: a hook does, for each call",
                )
        return items

    def _find_operation(self, id: str, context: Context) -> Operation | None:
        """Return the operation as this caller is shown it: approvals are bound to that definition."""
        if self._registry is None:
            return None
        try:
            return self._registry.get(id, owner=context.identity.owner).for_caller(context)
        except NotFound:
            return None

    def _make_rule(self, item: ApprovalItem, approval: ApprovalRequest, *, by: Identity) -> StandingRule:
        if item.provider is None:
            raise Conflict(f"approval {approval.id!r} does not name the provider of {item.operation}")
        return StandingRule(
            id=new_id("rul"),
            owner=approval.owner,
            operation=item.operation,
            provider=item.provider,
            created_at=self._clock(),
            created_by=by.owner,
            agent=item.agent or approval.agent,
            key_id=by.key_id,
            approval_id=approval.id,
            by_admin=acts_as_admin(by),
        )

    def _to_json(self, rule: StandingRule) -> Json:
        """Return a rule as JSON. `inForce` is null where operations are not known."""
        context = Context(identity=Identity(rule.owner), agent=rule.agent)
        operation = self._find_operation(rule.operation, context)
        in_force = operation is not None and operation.call_provider == rule.provider
        if in_force and operation is not None and self._access is not None:
            in_force = rule.may_answer(self._access.evaluate(operation, context).rule)
        return {
            "id": rule.id,
            "owner": rule.owner,
            "operation": rule.operation,
            "provider": rule.provider.name,
            "definition": rule.provider.definition,
            "agent": rule.agent,
            "createdAt": rule.created_at,
            "createdBy": rule.created_by,
            "approvalId": rule.approval_id,
            "inForce": None if self._registry is None else in_force,
        }


def acts_as_admin(caller: Identity) -> bool:
    """Return whether a caller has the scope "admin" by name, or is a hub without keys or its command line."""
    return "admin" in (caller.scopes or ()) or (caller.key_id is None and caller.may("admin"))


def check_may_add(approval: ApprovalRequest, caller: Identity) -> None:
    """Raise Forbidden unless the caller may allow such calls for good.

    An admin may. So may the owner of the call, if the rule lets them answer; nobody else who may answer it,
    for they would allow calls on behalf of somebody who was not asked.
    """
    if acts_as_admin(caller):
        return
    if caller.owner != approval.owner or not may_answer(approval, caller):
        raise Forbidden(
            f"you may not always allow what approval {approval.id!r} asks",
            hint="the owner of the call may, if they may answer it, and a key with the scope admin",
        )

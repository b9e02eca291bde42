"""Standing rules: what a person always allows, so that a policy's `ask` is not asked again.

A rule is for one operation as its present provider defines it, for one owner's calls and one agent. It turns
`ask` into `allow`, and nothing else: a denied call stays denied, a question is asked, and so is whatever a
hook asks about. Calls that somebody else is behind (a spoke, another agent) are asked about as before, and so
are calls about which the policy now asks others than those who allowed them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, TypeAlias

import msgspec

from dragoman.operations.approval import OWNER, ApprovalItem, ApprovalRequest, CallProvider
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Decision, Rule

StandingKey: TypeAlias = tuple[str, str, str | None, CallProvider]


class StandingRule(msgspec.Struct, frozen=True, kw_only=True):
    """What `created_by` always allows for the calls of `owner`; `approval_id` is what was asked then.

    `by_admin` says whether they did so as an admin, who may answer for everybody.
    """

    id: str
    owner: str
    operation: str
    provider: CallProvider
    created_at: float
    created_by: str
    agent: str | None = None
    key_id: str | None = None
    approval_id: str | None = None
    by_admin: bool | None = None

    @property
    def key(self) -> StandingKey:
        """What it is for: two rules of the same key are the same rule."""
        return self.owner, self.operation.lower(), self.agent, self.provider

    @property
    def is_of_admin(self) -> bool:
        """Whether an admin made it: nobody else may allow the calls of others."""
        return bool(self.by_admin) or self.created_by != self.owner

    def may_answer(self, rule: Rule | None) -> bool:
        """Return whether the policy's rule lets those who made this one answer what it asks."""
        answerers = None if rule is None else rule.answerers
        return self.is_of_admin or not answerers or OWNER in answerers or self.owner in answerers


class StandingRules:
    """The standing rules in force. Without any, everything is asked about that the policy asks about."""

    def __init__(self, rules: Iterable[StandingRule] = ()) -> None:
        self._by_key = {rule.key: rule for rule in rules}

    def replace(self, rules: Iterable[StandingRule]) -> None:
        """Put these rules in force instead."""
        self._by_key = {rule.key: rule for rule in rules}

    def find(self, operation: Operation, context: Context, *, rule: Rule | None) -> StandingRule | None:
        """Return the rule that allows a call about which a rule of the policy asks; None without one."""
        if not self._by_key or operation.make_question is not None:
            return None
        if context.intermediaries or context.parent_agents:
            return None
        owner, id = context.identity.owner, operation.id.lower()
        found = self._by_key.get((owner, id, context.agent, operation.call_provider))
        return found if found is not None and found.may_answer(rule) else None


def standing_items(approval: ApprovalRequest) -> list[ApprovalItem]:
    """Return those items of a request that can always be allowed: no questions, nothing of a sub-agent."""
    return [
        item
        for item in approval.items
        if item.question is None and item.agent is None and item.provider is not None
    ]


@lru_cache(maxsize=512)
def describe_decision(decision: Decision, rule: Rule | None, *, standing_id: str | None) -> str | None:
    """Return what decided about a call as JSON text; None where no rule did."""
    if rule is None and standing_id is None and decision == "allow":
        return None
    body: dict[str, Any] = {"decision": decision}
    if rule is not None:
        fields = {"operations": rule.operations, "effects": rule.effects, "agents": rule.agents}
        named: dict[str, Any] = {**fields, "identities": rule.identities, "reason": rule.reason}
        body["rule"] = {"decision": rule.decision, **{name: value for name, value in named.items() if value}}
    if standing_id is not None:
        body["standing"] = standing_id
    return msgspec.json.encode(body).decode()

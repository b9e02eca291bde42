"""Standing rules: calls that a person has allowed for ever, so that they need no further approval.

A rule is for one operation as its present provider defines it, for one owner's calls and one agent. It only
turns the policy's `ask` into `allow`: denied calls stay denied, and questions and the `ask` of hooks still
need an answer. So do calls with others behind them (a spoke, another agent), and calls for which the policy
now names other answerers than the person who allowed them.
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
    """A call of `owner` that `created_by` always allows; `approval_id` is the request in which they did so.

    `by_admin`: they did so as an admin, who may answer for everybody.
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
        """The calls it is for: two rules with the same key are the same rule."""
        return self.owner, self.operation.lower(), self.agent, self.provider

    @property
    def is_of_admin(self) -> bool:
        """Whether an admin created it: nobody else may allow the calls of others."""
        return bool(self.by_admin) or self.created_by != self.owner

    def may_answer(self, rule: Rule | None) -> bool:
        """Return whether the creator of this rule may answer requests of the policy's rule."""
        answerers = None if rule is None else rule.answerers
        return self.is_of_admin or not answerers or OWNER in answerers or self.owner in answerers


class StandingRules:
    """The standing rules in force."""

    def __init__(self, rules: Iterable[StandingRule] = ()) -> None:
        self._by_key = {rule.key: rule for rule in rules}

    def replace(self, rules: Iterable[StandingRule]) -> None:
        """Replace all rules."""
        self._by_key = {rule.key: rule for rule in rules}

    def find(self, operation: Operation, context: Context, *, rule: Rule | None) -> StandingRule | None:
        """Return the standing rule for a call for which the policy's `rule` asks; None without one."""
        if not self._by_key or operation.make_question is not None:
            return None
        if context.intermediaries or context.parent_agents:
            return None
        owner, id = context.identity.owner, operation.id.lower()
        standing = self._by_key.get((owner, id, context.agent, operation.call_provider))
        return standing if standing is not None and standing.may_answer(rule) else None


def standing_items(approval: ApprovalRequest) -> list[ApprovalItem]:
    """Return the items of a request that can be allowed for ever: no questions, and none of sub-agents."""
    return [
        item
        for item in approval.items
        if item.question is None and item.agent is None and item.provider is not None
    ]


@lru_cache(maxsize=512)
def describe_decision(decision: Decision, rule: Rule | None, *, standing_id: str | None) -> str | None:
    """Return the decision about a call as JSON text; None if no rule matches."""
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

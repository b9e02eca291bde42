"""Standing rules in the database: the calls that people always allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from sqlalchemy import bindparam, delete, func, insert, select

from dragoman.errors import Conflict, NotFound
from dragoman.identity import Identity
from dragoman.operations.approval import CallProvider
from dragoman.operations.permission.standing_rules import StandingRule
from dragoman.store.connection import (
    Compiler,
    DatabaseConnection,
    Row,
    decode_json,
    encode_json,
    select_fields,
    to_fields,
    to_params,
)
from dragoman.store.database import Database
from dragoman.store.hub_events import HubEventRepository, NewEvent
from dragoman.store.tables.core import policy_rules

MAX_RULES = 500  # of an owner


class PolicyRuleStatements:
    """The SQL of `PolicyRuleRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        table = policy_rules.c
        this, of_owner = table.id == bindparam("id"), table.owner == bindparam("owner")
        found = select_fields(StandingRule, policy_rules)
        in_order = (table.created_at, table.id)
        self.insert = compiler.compile(insert(policy_rules))
        self.get = compiler.compile(found.where(this))
        self.list = compiler.compile(found.order_by(*in_order))
        self.list_of_owner = compiler.compile(found.where(of_owner).order_by(*in_order))
        self.count = compiler.compile(select(func.count()).where(of_owner))
        self.delete = compiler.compile(delete(policy_rules).where(this))


class PolicyRuleRepository:
    """The standing rules of all owners. `on_changed` is called once a change is committed."""

    def __init__(
        self, database: Database, *, events: HubEventRepository, on_changed: Callable[[], None]
    ) -> None:
        self._database = database
        self._events = events
        self._on_changed = on_changed

    @cached_property
    def _sql(self) -> PolicyRuleStatements:
        return self._database.statements(PolicyRuleStatements)

    async def add(self, rule: StandingRule) -> StandingRule:
        """Insert a rule and return it, or the stored one that is the same. Raises Conflict above MAX_RULES.

        An admin's rule replaces the owner's: by now the policy may let only others answer.
        """
        params = to_params(rule) | {"provider": encode_json(rule.provider)}

        def job(connection: DatabaseConnection) -> StandingRule:
            connection.lock(f"policy rules {rule.owner}")
            rows = connection.fetch_all(self._sql.list_of_owner, {"owner": rule.owner})
            same = next((each for each in map(to_rule, rows) if each.key == rule.key), None)
            if same is not None and (same.is_of_admin or not rule.is_of_admin):
                return same
            if same is not None:
                connection.execute(self._sql.delete, {"id": same.id})
            elif len(rows) >= MAX_RULES:
                raise Conflict(
                    f"{rule.owner!r} has {MAX_RULES} standing rules",
                    hint="revoke some, or write a rule into the configuration",
                )
            connection.execute(self._sql.insert, params)
            self._events.insert(connection, rule_event("policy.rule_added", rule, by=rule.created_by))
            return rule

        added = await self._database.write(job)
        self._events.on_stored()
        self._on_changed()
        return added

    async def get(self, id: str) -> StandingRule:
        """Return the rule of this id. Raises NotFound."""
        row = await self._database.read(lambda connection: connection.fetch_one(self._sql.get, {"id": id}))
        if row is None:
            raise rule_not_found(id)
        return to_rule(row)

    async def list(self, *, owner: str | None = None) -> Sequence[StandingRule]:
        """Return the rules, the oldest first: all, or those of an owner."""
        sql = self._sql.list if owner is None else self._sql.list_of_owner
        params: dict[str, Any] = {} if owner is None else {"owner": owner}
        rows = await self._database.read(lambda connection: connection.fetch_all(sql, params))
        return [to_rule(row) for row in rows]

    async def delete(self, rule: StandingRule, *, by: Identity) -> None:
        """Delete a rule. Raises NotFound."""

        def job(connection: DatabaseConnection) -> None:
            if not connection.execute(self._sql.delete, {"id": rule.id}):
                raise rule_not_found(rule.id)
            self._events.insert(connection, rule_event("policy.rule_revoked", rule, by=by.owner))

        await self._database.write(job)
        self._events.on_stored()
        self._on_changed()


def rule_not_found(id: str) -> NotFound:
    return NotFound(f"there is no rule {id!r}", hint="`dragoman policy rules` lists them")


def rule_event(name: str, rule: StandingRule, *, by: str) -> NewEvent:
    body = {"ruleId": rule.id, "operation": rule.operation, "agent": rule.agent, "owner": rule.owner}
    data = msgspec.json.encode(body).decode()
    return NewEvent(name=name, owner=rule.owner, data=data, actor=by, key_id=rule.key_id)


def to_rule(row: Row) -> StandingRule:
    fields = to_fields(StandingRule, row)
    return StandingRule(**fields | {"provider": decode_json(fields["provider"], CallProvider)})

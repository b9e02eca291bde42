"""Budgets in the database: money is reserved before a request and settled after it, each in a transaction.

Amounts are whole billionths of a US dollar. The first reservation in a window adds up the usage records of
that window, so a limit that is set in the middle of a month counts the whole month.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import msgspec
from sqlalchemy import (
    ColumnElement,
    Select,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    select,
    update,
)

from dragoman.store.connection import Compiler, DatabaseConnection, DatabaseJob
from dragoman.store.database import Database
from dragoman.store.tables.core import budgets, host_reservations, hosts, team_tasks, usage

NANOS_PER_DOLLAR = 1_000_000_000
RETENTION_DAYS = 60
SCOPE_COLUMNS = {"key": usage.c.key_id, "owner": usage.c.owner}
SHARED_WINDOW = "tasks"  # of budgets that tasks share with the call that gave them; it lasts as long as they
CALLS_WINDOW = "calls"  # of the same budgets, for calls instead of money
UNLIMITED = 2**62  # the limit in money of a budget that limits calls only

WindowKind: TypeAlias = Literal["day", "month", "total"]


class ChargedBudget(msgspec.Struct, frozen=True):
    """A budget that pays: `scope` "key:ID" or "owner:NAME", `window` as `budget_window` names it, its
    limit. The scope of one that tasks share is its name, and its window `SHARED_WINDOW`; `calls` is how many
    calls it allows. Earlier versions do not read that field.
    """

    scope: str
    window: str
    limit: int
    calls: int | None = None


class BudgetRefusal(msgspec.Struct, frozen=True):
    """The budget that has too little left, and its current amounts."""

    charge: ChargedBudget
    spent: int
    reserved: int


class OpenedBudget(msgspec.Struct, frozen=True):
    """A budget that only one process has used so far, and what was spent and reserved of it."""

    scope: str
    spent: int
    reserved: int = 0
    window: str = SHARED_WINDOW


class BudgetStatements:
    """The SQL of `BudgetRepository`; see `Database.statements`."""

    def __init__(self, compiler: Compiler) -> None:
        spent, reserved = budgets.c.spent, budgets.c.reserved
        this = (budgets.c.scope == bindparam("of")) & (budgets.c.window == bindparam("within"))
        amount: ColumnElement[int] = bindparam("amount")
        fits = spent + reserved + amount <= bindparam("limit")
        remaining = case(
            (reserved > bindparam("back"), reserved - bindparam("back")), else_=literal_column("0")
        )
        settlement = {"reserved": remaining, "spent": spent + amount}
        self.reserve = compiler.compile(update(budgets).where(this, fits).values(reserved=reserved + amount))
        self.settle = compiler.compile(update(budgets).where(this).values(settlement))
        self.get = compiler.compile(select(spent, reserved).where(this))
        higher = case((spent < bindparam("least"), bindparam("least")), else_=spent)
        opening = {"reserved": reserved + amount, "spent": higher}
        self.raise_amounts = compiler.compile(update(budgets).where(this).values(opening))
        self.delete_shared = compiler.compile(delete(budgets).where(is_old_and_unused()))
        self.clear = compiler.compile(update(budgets).values(reserved=bindparam("nothing")))
        self.delete_old = compiler.compile(
            delete(budgets).where(budgets.c.window.between(bindparam("first"), bindparam("last")))
        )
        insert = compiler.insert(budgets).on_conflict_do_nothing(index_elements=["scope", "window"])
        self.insert_if_missing = compiler.compile(insert)
        self.host = HostReservationStatements(compiler)
        self.sum_costs = {kind: compiler.compile(select_cost(kind)) for kind in SCOPE_COLUMNS}


class HostReservationStatements:
    """The SQL of each host's part of the reservations. Rows of `budgets` are locked before these."""

    def __init__(self, compiler: Compiler) -> None:
        table = host_reservations
        mine = table.c.host == bindparam("by")
        this = mine & (table.c.scope == bindparam("of")) & (table.c.window == bindparam("within"))
        put = compiler.insert(table)
        total = table.c.reserved + put.excluded.reserved
        upsert = put.on_conflict_do_update(
            index_elements=["host", "scope", "window"], set_={"reserved": total}
        )
        self.add = compiler.compile(upsert)
        left = {"reserved": table.c.reserved - bindparam("back")}
        self.subtract = compiler.compile(update(table).where(this).values(left))
        found = select(table.c.scope, table.c.window, table.c.reserved).where(mine)
        self.list = compiler.compile(found.order_by(table.c.scope, table.c.window).with_for_update())
        self.delete = compiler.compile(delete(table).where(mine))
        self.delete_settled = compiler.compile(delete(table).where(table.c.reserved == bindparam("nothing")))
        members = select(hosts.c.id).where(hosts.c.fenced_at.is_(None))
        self.list_lost = compiler.compile(
            select(table.c.host).where(table.c.host.not_in(members)).distinct().order_by(table.c.host)
        )
        is_reserved = select(budgets.c.scope, budgets.c.window).where(
            budgets.c.reserved != bindparam("nothing")
        )
        self.lock_reserved = compiler.compile(
            is_reserved.order_by(budgets.c.scope, budgets.c.window).with_for_update()
        )
        same = (table.c.scope == budgets.c.scope) & (table.c.window == budgets.c.window)
        sum_of_hosts = select(func.coalesce(func.sum(table.c.reserved), literal_column("0"))).where(same)
        budget = (budgets.c.scope == bindparam("of")) & (budgets.c.window == bindparam("within"))
        self.correct = compiler.compile(
            update(budgets).where(budget).values(reserved=sum_of_hosts.scalar_subquery())
        )


class BudgetRepository:
    """Spent and reserved amounts of each budget window.

    Where several hosts share the database, `host_reservations` has the part of each host's, in the same
    transactions: the sum over the hosts is what is reserved, and a dead host's part can be given back.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], float],
        recovered: bool = True,
        host_id: str | None = None,
    ) -> None:
        """Unless `recovered`, the first reservation clears those that no living process has.

        `host_id` is the host that reserves; None where one process has the database to itself.
        """
        self.host_id = host_id
        self._database = database
        self._clock = clock
        self._recovered = recovered
        self._recovery_lock = asyncio.Lock()

    @cached_property
    def _sql(self) -> BudgetStatements:
        return self._database.statements(BudgetStatements)

    async def reserve(self, charges: Sequence[ChargedBudget], amount: int) -> BudgetRefusal | None:
        """Reserve the amount in every budget; or in none, and return the one that has too little left."""
        if not self._recovered:
            await self.recover()
        ordered = sorted(charges, key=budget_key)

        def job(connection: DatabaseConnection) -> BudgetRefusal | None:
            for at, charge in enumerate(ordered):
                if not self._reserve_in(connection, charge, amount=amount):
                    # Undo by hand. Raising would roll back the other jobs of this transaction.
                    self._settle(connection, ordered[:at], reserved=amount, spent=0)
                    balance = self._stored_balance(connection, charge.scope, window=charge.window)
                    return BudgetRefusal(charge, *(balance or (0, 0)))
            if self.host_id is not None:
                for charge in ordered:
                    row = {"scope": charge.scope, "window": charge.window, "reserved": amount}
                    connection.execute_batched(self._sql.host.add, {"host": self.host_id, **row})
            return None

        return await self._database.write(job)

    async def count(self, charges: Sequence[ChargedBudget]) -> BudgetRefusal | None:
        """Spend one call of every budget; or of none, and return the one that has none left."""
        ordered = sorted(charges, key=budget_key)

        def job(connection: DatabaseConnection) -> BudgetRefusal | None:
            for at, charge in enumerate(ordered):
                if not self._reserve_in(connection, charge, amount=1):
                    self._settle(connection, ordered[:at], reserved=1, spent=0)
                    balance = self._stored_balance(connection, charge.scope, window=charge.window)
                    return BudgetRefusal(charge, *(balance or (0, 0)))
            self._settle(connection, ordered, reserved=1, spent=1)
            return None

        return await self._database.write(job)

    def settle_job(self, charges: Sequence[ChargedBudget], *, reserved: int, spent: int) -> DatabaseJob[None]:
        """Return a job that ends a reservation and adds what was spent, for `Store.enqueue` or `Store.write`.

        Write the usage record in the same job or before: a budget without a row is not updated; its first
        reservation sums up the records.
        """

        def job(connection: DatabaseConnection) -> None:
            self._settle(connection, charges, reserved=reserved, spent=spent)
            if self.host_id is not None and reserved:
                for charge in charges:
                    where = {"by": self.host_id, "of": charge.scope, "within": charge.window}
                    connection.execute_batched(self._sql.host.subtract, {**where, "back": reserved})

        return job

    async def get_balance(self, scope: str, window: str) -> tuple[int, int]:
        """Return what is spent and what is reserved."""

        [balance] = await self.get_balances([(scope, window)])
        return balance

    async def get_balances(self, places: Sequence[tuple[str, str]]) -> Sequence[tuple[int, int]]:
        """Return what is spent and what is reserved of each scope and window, as of one moment."""

        def query(connection: DatabaseConnection) -> Sequence[tuple[int, int]]:
            return [
                self._stored_balance(connection, scope, window=window)
                or (self._sum_usage(connection, scope, window=window), 0)
                for scope, window in places
            ]

        return await self._database.read(query)

    async def find_shared(self, scope: str, *, window: str = SHARED_WINDOW) -> int | None:
        """Return what is spent of a budget that tasks share; None when it is not shared."""

        def query(connection: DatabaseConnection) -> int | None:
            stored = self._stored_balance(connection, scope, window=window)
            return None if stored is None else stored[0]

        return await self._database.read(query)

    async def open_shared(self, opened: Sequence[OpenedBudget]) -> None:
        """Add the rows of budgets that tasks share from now on, each with what is spent of it already."""
        rows = [
            {
                "scope": each.scope,
                "window": each.window,
                "spent": 0,
                "reserved": 0,
                "opened_at": self._clock(),
            }
            for each in opened
        ]

        def job(connection: DatabaseConnection) -> None:
            connection.execute_many(self._sql.insert_if_missing, rows)
            for each in sorted(opened, key=lambda budget: (budget.scope, budget.window)):
                where = {"of": each.scope, "within": each.window}
                amounts = {"least": each.spent, "amount": each.reserved}
                connection.execute(self._sql.raise_amounts, {**where, **amounts})
                if self.host_id is not None and each.reserved:
                    part = {"scope": each.scope, "window": each.window, "reserved": each.reserved}
                    connection.execute_batched(self._sql.host.add, {"host": self.host_id, **part})

        await self._database.write(job)

    async def release_host(self, host_id: str) -> None:
        """Give back what a dead host has reserved, in one transaction. Calls after the first change nothing.

        Only for a host that is fenced: it can reserve and settle nothing any more.
        """
        await self._database.write(partial(self._release_host, host_id=host_id))

    async def release_lost_hosts(self) -> None:
        """Give back what hosts have reserved that are fenced or gone; delete the rows of settled amounts."""

        def job(connection: DatabaseConnection) -> None:
            self._release_lost(connection)
            connection.execute(self._sql.host.delete_settled, {"nothing": 0})

        await self._database.write(job)

    async def recover(self) -> None:
        """Once, clear the reservations that no living process has, and delete the rows of old days."""
        async with self._recovery_lock:
            if self._recovered:
                return
            oldest = datetime.fromtimestamp(self._clock(), UTC) - timedelta(days=RETENTION_DAYS)

            def job(connection: DatabaseConnection) -> None:
                if self.host_id is None:
                    connection.execute(self._sql.clear, {"nothing": 0})
                else:
                    self._release_lost(connection)
                    self._clear_unowned(connection)
                connection.execute(
                    self._sql.delete_old, {"first": "day:", "last": budget_window("day", oldest.timestamp())}
                )
                connection.execute(self._sql.delete_shared, {"oldest": oldest.timestamp()})

            await self._database.write(job)
            self._recovered = True

    def _settle(
        self, connection: DatabaseConnection, charges: Sequence[ChargedBudget], *, reserved: int, spent: int
    ) -> None:
        for charge in sorted(charges, key=budget_key):  # the order in which they are reserved: no deadlocks
            where = {"of": charge.scope, "within": charge.window}
            connection.execute_batched(self._sql.settle, {**where, "back": reserved, "amount": spent})

    def _release_host(self, connection: DatabaseConnection, *, host_id: str) -> None:
        for scope, window, reserved in connection.fetch_all(self._sql.host.list, {"by": host_id}):
            if reserved > 0:
                where = {"of": scope, "within": window}
                connection.execute_batched(self._sql.settle, {**where, "back": reserved, "amount": 0})
        connection.execute(self._sql.host.delete, {"by": host_id})

    def _release_lost(self, connection: DatabaseConnection) -> None:
        for (host_id,) in connection.fetch_all(self._sql.host.list_lost, {}):
            self._release_host(connection, host_id=host_id)

    def _clear_unowned(self, connection: DatabaseConnection) -> None:
        """Clear reservations of no host: a hub that had the database to itself made them, and crashed.

        The rows are locked before the hosts' parts are read, so that a part which comes in at the same time
        is counted.
        """
        rows = connection.fetch_all(self._sql.host.lock_reserved, {"nothing": 0})
        connection.execute_many(
            self._sql.host.correct, [{"of": scope, "within": window} for scope, window in rows]
        )

    def _reserve_in(self, connection: DatabaseConnection, charge: ChargedBudget, *, amount: int) -> bool:
        scope, window = charge.scope, charge.window
        params = {"of": scope, "within": window, "amount": amount, "limit": charge.limit}
        if connection.execute(self._sql.reserve, params):
            return True
        if self._stored_balance(connection, scope, window=window):
            return False
        is_shared = window in (SHARED_WINDOW, CALLS_WINDOW)
        row = {
            "scope": scope,
            "window": window,
            "spent": 0 if is_shared else self._sum_usage(connection, scope, window=window),
            "reserved": 0,
            "opened_at": self._clock() if is_shared else None,
        }
        connection.execute(self._sql.insert_if_missing, row)
        return connection.execute(self._sql.reserve, params) > 0

    def _stored_balance(
        self, connection: DatabaseConnection, scope: str, *, window: str
    ) -> tuple[int, int] | None:
        row = connection.fetch_one(self._sql.get, {"of": scope, "within": window})
        return None if row is None else (row[0], row[1])

    def _sum_usage(self, connection: DatabaseConnection, scope: str, *, window: str) -> int:
        kind, _, id = scope.partition(":")
        since, until = window_bounds(window)
        row = connection.fetch_one(self._sql.sum_costs[kind], {"id": id, "since": since, "until": until})
        return 0 if row is None or row[0] is None else round(row[0] * NANOS_PER_DOLLAR)


def budget_key(charge: ChargedBudget) -> tuple[str, str]:
    return charge.scope, charge.window


def is_old_and_unused() -> ColumnElement[bool]:
    """Return the condition that a budget was shared long ago, and no task may spend of it any more."""
    named = team_tasks.c.shared_budgets.contains(budgets.c.scope)
    is_used = exists(select(team_tasks.c.id)).where(team_tasks.c.ended_at.is_(None), named)
    return (budgets.c.opened_at < bindparam("oldest")) & ~is_used


def select_cost(kind: str) -> Select[Any]:
    """Return the query for the cost of a key or an owner between two times."""
    started = usage.c.started_at
    within = (started >= bindparam("since")) & (started < bindparam("until"))
    return select(func.sum(usage.c.cost)).where(SCOPE_COLUMNS[kind] == bindparam("id"), within)


def budget_window(kind: WindowKind, time: float) -> str:
    """Return the window of a unix time: "day:2026-11-22", "month:2026-11" (both UTC) or "total"."""
    match kind:
        case "day":
            return f"day:{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"
        case "month":
            return f"month:{datetime.fromtimestamp(time, UTC):%Y-%m}"
        case "total":
            return "total"


def window_at(window: str, time: float) -> str:
    """Return the window of the same kind at a unix time."""
    match window.partition(":")[0]:
        case "day" | "month" as kind:
            return budget_window(kind, time)
        case _:
            return window


def window_bounds(window: str) -> tuple[float, float]:
    """Return the start and end of a window in unix seconds."""
    span, _, date = window.partition(":")
    match span:
        case "day":
            begin = datetime.strptime(date, "%Y-%m-%d").replace(tzinfo=UTC)
            end = begin + timedelta(days=1)
        case "month":
            begin = datetime.strptime(date, "%Y-%m").replace(tzinfo=UTC)
            end = (begin + timedelta(days=31)).replace(day=1)
        case "total" if not date:
            return 0.0, 1e12
        case _:
            raise ValueError(f"there is no window {window!r}")
    return begin.timestamp(), end.timestamp()

"""The hub's database: tables, queries and migrations."""

from dragoman.store.accounts.keys import ApiKey
from dragoman.store.accounts.usage import UsageTotals
from dragoman.store.runs import RunRecord, RunStatus
from dragoman.store.sessions.run_ends import FinalStatus, RunEnding
from dragoman.store.sessions.sessions import Session
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord

__all__ = [
    "ApiKey",
    "FinalStatus",
    "RunEnding",
    "RunRecord",
    "RunStatus",
    "Session",
    "Store",
    "UsageRecord",
    "UsageTotals",
]

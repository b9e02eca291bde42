"""Tables, queries and migrations: what the hub keeps."""

from dragoman.store.keys import Key
from dragoman.store.runs import Ending, FinalStatus, Run, RunStatus
from dragoman.store.sessions import Session
from dragoman.store.store import Store
from dragoman.store.usage import Totals, UsageRecord

__all__ = [
    "Ending",
    "FinalStatus",
    "Key",
    "Run",
    "RunStatus",
    "Session",
    "Store",
    "Totals",
    "UsageRecord",
]

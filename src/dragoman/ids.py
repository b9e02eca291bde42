"""Short random ids, safe in URLs."""

from __future__ import annotations

import os
import random
import time
from base64 import urlsafe_b64encode

RANDOM_LENGTH = 18
ORDERED_RANDOM_LENGTH = 9  # characters behind the time
RANDOM_BYTES = 15  # 20 characters; 14 would leave the last one two bits

_random = random.Random()  # noqa: S311 - names, no secrets; seeded by the system, and 100 times faster
os.register_at_fork(after_in_child=_random.seed)  # a forked process would go on with the ids of the other


def new_id(prefix: str) -> str:
    """A new id, like `run_x3…`: 18 characters of 6 random bits behind its kind."""
    return f"{prefix}_{urlsafe_b64encode(_random.randbytes(RANDOM_BYTES))[:RANDOM_LENGTH].decode()}"


def sortable_id(prefix: str) -> str:
    """A new id that sorts behind earlier ones: rows that come one after the other then lie side by side."""
    moment = time.time_ns() // 1_000_000
    return (
        f"{prefix}_{moment:011x}"
        f"{urlsafe_b64encode(_random.randbytes(RANDOM_BYTES))[:ORDERED_RANDOM_LENGTH].decode()}"
    )

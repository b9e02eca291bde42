"""Short random ids, safe in URLs. They name things; none of them is a secret."""

from __future__ import annotations

import os
import random
import time
from binascii import b2a_base64

RANDOM_LENGTH = 18
ORDERED_RANDOM_LENGTH = 9  # characters after the timestamp
RANDOM_BYTES = 15  # 20 characters of base64; with 14 bytes the last character would have only two random bits
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

_random = random.Random()  # noqa: S311 - ids are not secrets; seeded by the system, 100 times faster than it
os.register_at_fork(after_in_child=_random.seed)  # else a forked process would repeat its parent's ids


def new_id(prefix: str) -> str:
    """Return a new id such as `run_x3…`: the prefix and 18 characters of 6 random bits."""
    return f"{prefix}_{_random_text()[:RANDOM_LENGTH]}"


def sortable_id(prefix: str) -> str:
    """Return a new id that sorts after earlier ones, so that consecutive rows share the pages of an index."""
    milliseconds = time.time_ns() // 1_000_000
    return f"{prefix}_{milliseconds:011x}{_random_text()[:ORDERED_RANDOM_LENGTH]}"


def _random_text() -> str:
    """Return 20 characters of base64, safe in URLs; five calls fewer than by `base64` and `randbytes`."""
    random_bytes = _random.getrandbits(8 * RANDOM_BYTES).to_bytes(RANDOM_BYTES, "little")
    return b2a_base64(random_bytes, newline=False).translate(_URL_SAFE).decode()

"""Short random ids, safe in URLs. They name things; none of them is a secret."""

from __future__ import annotations

import os
import random
import time
from binascii import b2a_base64

RANDOM_LENGTH = 18
ORDERED_RANDOM_LENGTH = 9  # characters after the timestamp
RANDOM_BYTES = 15  # 20 characters of base64; with 14 bytes the last character would have only two random bits
TEXT_LENGTH = 20
_URL_SAFE = bytes.maketrans(b"+/", b"-_")

POOL_SIZE = 64  # texts that are made at once

_random = random.Random()  # noqa: S311 - ids are not secrets; seeded by the system, 100 times faster than it
_texts: list[str] = []  # that no id has yet
os.register_at_fork(after_in_child=_random.seed)  # else a forked process would repeat its parent's ids
os.register_at_fork(after_in_child=_texts.clear)


def new_id(prefix: str) -> str:
    """Return a new id such as `run_x3…`: the prefix and 18 characters of 6 random bits."""
    try:  # here, not in a function of both: every request has three ids
        text = _texts.pop()
    except IndexError:
        text = _make_texts()
    return f"{prefix}_{text[:RANDOM_LENGTH]}"


def sortable_id(prefix: str) -> str:
    """Return a new id that sorts after earlier ones, so that consecutive rows share the pages of an index."""
    milliseconds = time.time_ns() // 1_000_000
    try:
        text = _texts.pop()
    except IndexError:
        text = _make_texts()
    return f"{prefix}_{milliseconds:011x}{text[:ORDERED_RANDOM_LENGTH]}"


def _make_texts() -> str:
    """Make further texts of 20 characters of base64, safe in URLs; return one of them."""
    size = POOL_SIZE * RANDOM_BYTES
    random_bytes = _random.getrandbits(8 * size).to_bytes(size, "little")
    encoded = b2a_base64(random_bytes, newline=False).translate(_URL_SAFE).decode()
    texts = [encoded[at : at + TEXT_LENGTH] for at in range(0, len(encoded), TEXT_LENGTH)]
    _texts.extend(texts[1:])
    return texts[0]

"""Ids: short, random, safe in URLs. They name things; none of them is a secret."""

from __future__ import annotations

import random

ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"
LENGTH = 18

_random = random.Random()  # noqa: S311 - names, no secrets; seeded by the system, and 100 times faster


def new_id(kind: str) -> str:
    """A new id, like `run_x3…`: 18 characters of 6 random bits behind its kind."""
    bits = _random.getrandbits(6 * LENGTH)
    return kind + "_" + "".join([ALPHABET[(bits >> shift) & 63] for shift in range(0, 6 * LENGTH, 6)])

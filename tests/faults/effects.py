"""Operations whose effects can be counted: each call appends its kind, its word and its idempotency key."""

from __future__ import annotations

import os
from pathlib import Path

from dragoman.operations.context import current
from dragoman.operations.definitions.decorator import operation


def note(kind: str, word: str) -> str:
    with Path(os.environ["EFFECTS"]).open("a") as file:
        file.write(f"{kind} {word} {current().idempotency_key}\n")
    return f"{kind} {word}"


@operation("effects", effect="once")
async def act(word: str) -> str:
    """Act, once."""
    return note("once", word)


@operation("effects", effect="idempotent")
async def put(word: str) -> str:
    """Put a value, which may be repeated."""
    return note("idempotent", word)


@operation("effects", effect="read")
async def look(word: str) -> str:
    """Look, which changes nothing."""
    return note("read", word)

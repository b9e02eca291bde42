"""Suggestions for a model that its provider does not have: the most similar names that it lists."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from dragoman.errors import ProviderError
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.offload import offload
from dragoman.suggestions import MAX_NAME_LENGTH, find_similar_names

CACHE_SECONDS = 60.0  # also for a provider that lists no models
MAX_MODELS = 1_000  # names of one provider
MAX_SUGGESTED = 10  # names in one hint
_COMPARISON = 1_000  # the cost of comparing two names, in bytes of `offload`
_STATUSES = (400, 404, 422)
_CODES = frozenset({"model_not_found", "model_not_available", "invalid_model", "unknown_model"})
_UNKNOWN = re.compile(
    r"\bmodels?\b.{0,120}\b(not (be )?(found|exist|available)|does(n't| not) exist"
    r"|is(n't| not) (a )?(valid|found)|unknown|invalid)"
    r"|\b(unknown|invalid|no such|unrecognized|nonexistent|not found the|not a valid|could not find"
    r"|unable to access)( the)? models?\b|^models?: ?\S+$",
    re.IGNORECASE,
)


def is_unknown_model(error: ProviderError) -> bool:
    """Return whether a provider refused a request because it has no such model."""
    if error.category != "bad_request" or error.upstream_status not in _STATUSES:
        return False
    details = error.details or {}
    codes = {details.get(field) for field in ("code", "type") if isinstance(details.get(field), str)}
    return bool(codes & _CODES) or _UNKNOWN.search(error.message) is not None


def read_model_names(body: bytes) -> Sequence[str]:
    """Return the names in a list of models of OpenAI's, Anthropic's or Ollama's form; () for other bodies."""
    try:
        value = decode_json(body)
    except DECODE_ERRORS:
        return ()
    return tuple(dict.fromkeys(_names(value)))[:MAX_MODELS]


def _names(value: Any) -> Iterator[str]:
    entries = (value.get("data") or value.get("models")) if isinstance(value, dict) else value
    for entry in entries if isinstance(entries, list) else ():
        name = (entry.get("id") or entry.get("name")) if isinstance(entry, dict) else entry
        if isinstance(name, str) and name.isprintable() and 0 < len(name) <= MAX_NAME_LENGTH:
            yield name


class ModelList:
    """The models that one provider lists, fetched at most once in `CACHE_SECONDS`.

    While they are being fetched, other callers get the previous list: a lock would tie it to an event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._names: Sequence[str] = ()
        self._expires_at = float("-inf")
        self._clock = clock

    async def get(self, fetch: Callable[[], Awaitable[Sequence[str]]]) -> Sequence[str]:
        """Return the names, fetched again if they are too old."""
        if self._clock() < self._expires_at:
            return self._names
        self._expires_at = self._clock() + CACHE_SECONDS
        self._names = await fetch()
        return self._names


async def describe_models(model: str, names: Sequence[str], *, provider: str) -> str | None:
    """Return a hint with names that are similar to `model`, and some others; None if there are no names."""
    if not names:
        return None
    full_names = [f"{provider}/{name}" for name in names]
    return await offload(len(names) * _COMPARISON, lambda: _hint(f"{provider}/{model}", full_names))


def _hint(name: str, names: Sequence[str]) -> str:
    similar = find_similar_names(name, names, limit=MAX_SUGGESTED)
    shown = list(dict.fromkeys([*similar, *names]))[:MAX_SUGGESTED]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    question = f"did you mean {similar[0]!r}? " if similar else ""
    return f"{question}The provider's models are {', '.join(shown)}{more}"

"""Watching a cache: whether each request of a conversation begins as the one before it, and what broke it.

A conversation is known by its model and its first message. What breaks the beginning makes the provider read
all of it anew, at ten times the price; it is told once a conversation and cause.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from dragoman.request import ModelRequest
from dragoman.wire.anthropic.request import Prefix, prefix_of

log = logging.getLogger(__name__)
MOST = 1000  # conversations that are remembered
_CAUSES = {
    "tools": "its tools are others",
    "system": "its instructions are others",
    "settings": "its tool choice, thinking or effort is another",
    "messages": "an earlier message was changed or left out",
}


class Bust(msgspec.Struct, frozen=True):
    """A cached beginning that is of no use any more. `cause`: `tools`, `system`, `settings`, `messages`."""

    model: str
    first_message: str
    cause: str


class Caching:
    """What the last request of each conversation began with. `on_bust` hears of each one that broke it."""

    def __init__(self) -> None:
        self.on_bust: Callable[[Bust], None] = lambda _: None
        self._last: OrderedDict[tuple[str, str], tuple[Prefix, set[str]]] = OrderedDict()

    def note(self, request: ModelRequest, body: Mapping[str, Any]) -> Bust | None:
        """Compare a request with the one before it in its conversation."""
        first = request.messages[0].id if request.messages else ""
        key = (request.model, first)
        prefix = prefix_of(body)
        before, told = self._last.pop(key, (prefix, set()))
        cause = prefix.strays(before)
        self._last[key] = (prefix, told)
        if len(self._last) > MOST:
            self._last.popitem(last=False)
        if cause is None:
            return None
        bust = Bust(request.model, first, cause)
        if cause not in told:
            told.add(cause)
            log.warning(
                "the cache of a conversation with %s is of no use: %s than in the request before",
                request.model,
                _CAUSES[cause],
            )
        self.on_bust(bust)
        return bust

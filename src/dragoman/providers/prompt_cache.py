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

from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.prompt_cache import PromptPrefix, prompt_prefix

log = logging.getLogger(__name__)
MAX_CONVERSATIONS = 1000  # conversations that are remembered
_CAUSES = {
    "tools": "its tools are others",
    "system": "its instructions are others",
    "settings": "its tool choice, thinking or effort is another",
    "messages": "an earlier message was changed or left out",
}


class CacheBust(msgspec.Struct, frozen=True):
    """A cached beginning that is of no use any more. `cause`: `tools`, `system`, `settings`, `messages`."""

    model: str
    first_message: str
    cause: str


class PromptCacheMonitor:
    """What the last request of each conversation began with. `on_bust` hears of each one that broke it."""

    def __init__(self) -> None:
        self.on_bust: Callable[[CacheBust], None] = lambda _: None
        self._previous: OrderedDict[tuple[str, str], tuple[PromptPrefix, set[str]]] = OrderedDict()

    def compare(self, request: ModelRequest, body: Mapping[str, Any]) -> CacheBust | None:
        """Compare a request with the one before it in its conversation."""
        first = request.messages[0].id if request.messages else ""
        key = (request.model, first)
        prefix = prompt_prefix(body)
        before, told = self._previous.pop(key, (prefix, set()))
        cause = prefix.first_difference(before)
        self._previous[key] = (prefix, told)
        if len(self._previous) > MAX_CONVERSATIONS:
            self._previous.popitem(last=False)
        if cause is None:
            return None
        bust = CacheBust(request.model, first, cause)
        if cause not in told:
            told.add(cause)
            log.warning(
                "the cache of a conversation with %s is of no use: %s than in the request before",
                request.model,
                _CAUSES[cause],
            )
        self.on_bust(bust)
        return bust

"""Detect requests that invalidate a provider's prompt cache.

Each request of a conversation must start with the prompt of the one before; a change in that prefix makes the
provider process all of it again, at ten times the price. A conversation is identified by its model and first
message; each cause is logged once per conversation.
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
MAX_CONVERSATIONS = 1000  # least recently used are dropped
_CAUSES = {
    "tools": "its tools changed",
    "system": "its instructions changed",
    "settings": "its tool choice, thinking or effort changed",
    "messages": "an earlier message was changed or removed",
}


class CacheBust(msgspec.Struct, frozen=True):
    """A cached prompt prefix that cannot be reused. `cause`: `tools`, `system`, `settings`, `messages`."""

    model: str
    first_message: str
    cause: str


class PromptCacheMonitor:
    """Compares each request with the previous one of its conversation. `on_bust` is called for each bust."""

    def __init__(self) -> None:
        self.on_bust: Callable[[CacheBust], None] = lambda _: None
        self._previous: OrderedDict[tuple[str, str], tuple[PromptPrefix, set[str]]] = OrderedDict()

    def compare(self, request: ModelRequest, body: Mapping[str, Any]) -> CacheBust | None:
        """Compare a request with the previous one of its conversation; return the bust, if there is one."""
        first = request.messages[0].id if request.messages else ""
        key = (request.model, first)
        prefix = prompt_prefix(body)
        before, logged_causes = self._previous.pop(key, (prefix, set()))
        cause = prefix.first_difference(before)
        self._previous[key] = (prefix, logged_causes)
        if len(self._previous) > MAX_CONVERSATIONS:
            self._previous.popitem(last=False)
        if cause is None:
            return None
        bust = CacheBust(request.model, first, cause)
        if cause not in logged_causes:
            logged_causes.add(cause)
            log.warning(
                "a conversation with %s does not hit the prompt cache: %s since the previous request",
                request.model,
                _CAUSES[cause],
            )
        self.on_bust(bust)
        return bust

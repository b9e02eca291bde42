"""A ticket: what is written down of one gateway request, from its admission to its settlement."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec.structs import replace

from dragoman.accounts.meter import Admission
from dragoman.accounts.price import Price, usage_of_error
from dragoman.errors import DragomanError, ProviderError
from dragoman.events import Usage
from dragoman.identity import Identity
from dragoman.ids import sortable_id
from dragoman.providers.routing import Route, Routing
from dragoman.server.gateway.answer import AnswerProgress
from dragoman.store.usage import UsageRecord

CHARACTERS_PER_TOKEN = 4  # of a text, for one token


class RequestDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for what. `input_tokens` estimates the prompt, `price` finds that of a route."""

    identity: Identity
    request_id: str
    endpoint: str
    model: str
    input_tokens: int
    price: Callable[[Route], Price | None]


class RequestRecord:
    """One request. `settle` it once, however it ends."""

    def __init__(self, admission: Admission, details: RequestDetails) -> None:
        self.request_id = details.request_id
        self.route: Route | None = None
        self._admission = admission
        self._details = details
        self._started_at = time.time()
        self._clock_start = time.perf_counter()
        self._first_byte: float | None = None

    def mark_first_byte(self) -> None:
        """The first of the answer is here."""
        self._first_byte = time.perf_counter() - self._clock_start

    def settle(
        self, status: str, progress: AnswerProgress | None, *, error: DragomanError | None = None
    ) -> UsageRecord:
        """The request is over; the row that was written, with its cost."""
        progress = progress or AnswerProgress()
        route, asking = self.route, self._details
        record = UsageRecord(
            id=sortable_id("use"),
            owner=asking.identity.owner,
            status=status,
            started_at=self._started_at,
            key_id=asking.identity.key_id,
            provider=route.provider.name if route else None,
            model_asked=asking.model,
            model_served=progress.model or (route.model if route else None),
            tokens=usage_of_error(error) or self._billed_usage(progress, status=status),
            duration=time.perf_counter() - self._clock_start,
            finish_reason=progress.finish_reason,
            request_id=self.request_id,
            door=asking.endpoint,
            key_name=progress.key,
            first_byte=self._first_byte,
            upstream_status=error.upstream_status if isinstance(error, ProviderError) else None,
            error=error.code if error is not None else None,
        )
        told = error.cost if isinstance(error, ProviderError) else progress.cost
        return self._admission.settle(
            record, price=asking.price(route) if route else None, provider_cost=told
        )

    def release(self) -> None:
        """The request never reached a provider: nothing is spent."""
        self._admission.release()

    def response_headers(self) -> Mapping[str, str]:
        """What every answer says of itself."""
        said = request_id_headers(self.request_id)
        if self.route is not None:
            said["x-dragoman-model"] = header_value(self.route.name)
        return said

    def _billed_usage(self, progress: AnswerProgress, *, status: str) -> Usage:
        """What the provider counted, or an estimate of an answer that broke off; nothing if none began.

        Of an answer that its client has cut before it began the prompt counts: the provider has it.
        """
        known, cut = progress.usage, status == "aborted" and self.route is not None
        counted = status == "finished" or progress.finish_reason is not None
        if known is not None and (known.output_tokens or counted):
            return known
        if known is None and not (progress.started or cut):
            return Usage()
        known = known or Usage()
        asked = self._details.input_tokens if known.input_tokens is None else known.input_tokens
        output = -(-progress.text_length // CHARACTERS_PER_TOKEN)
        return replace(
            known, input_tokens=asked, output_tokens=output, total_tokens=asked + output, estimated=True
        )


def header_value(text: str) -> str:
    """What a client has named, as a header can carry it."""
    return text if text.isascii() and text.isprintable() else quote(text, safe="/:,")


def request_id_headers(request_id: str) -> dict[str, str]:
    """The headers in which the hub's and both families' clients look for a request's id."""
    return dict.fromkeys(("x-dragoman-request-id", "x-request-id", "request-id"), request_id)


def format_cost(cost: float) -> str:
    """A cost in US dollars as a header says it."""
    return f"{cost:.9f}".rstrip("0").rstrip(".") or "0"


# ---- The book: what the configuration says of models, as the gateway and the agents look it up.


class ModelCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says of models; a new one replaces it while requests are under way.

    `options` are what each provider is always given; `price` finds the price of a route; `models` are the
    names that are shown.
    """

    routing: Routing
    options: Mapping[str, Mapping[str, Any]]
    price: Callable[[Route], Price | None]
    models: Sequence[str]

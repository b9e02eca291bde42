"""The book: what the configuration says of models, as the gateway and the agents look it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.accounts.price import Price
from dragoman.providers.routing import Route, Routing


class Book(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says of models; a new one replaces it while requests are under way.

    `options` are what each provider is always given; `price` finds the price of a route; `models` are the
    names that are shown.
    """

    routing: Routing
    options: Mapping[str, Mapping[str, Any]]
    price: Callable[[Route], Price | None]
    models: Sequence[str]

"""The model catalog: what one configuration says of models, as the gateway looks it up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.accounts.payment import PriceOf
from dragoman.providers.routing import Routing


class ModelCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says of models; a new one replaces it while requests are under way.

    `options` are what each provider is always given; `price` finds the price of a route; `models` are the
    names that clients are shown.
    """

    routing: Routing
    options: Mapping[str, Mapping[str, Any]]
    price: PriceOf
    models: Sequence[str]

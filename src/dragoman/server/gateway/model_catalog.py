"""The model catalog: the routes, options, prices and names of models in one configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dragoman.accounts.payment import PriceOf
from dragoman.errors import DragomanError
from dragoman.identity import Identity
from dragoman.providers.routing import Routing, require_model_access


class ModelCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The models of a configuration. A reload replaces the catalog while requests are under way.

    `options` are sent with every request to a provider; `price` finds the price of a route; `models` are the
    names that clients are shown.
    """

    routing: Routing
    options: Mapping[str, Mapping[str, Any]]
    price: PriceOf
    models: Sequence[str]

    def allowed_models(self, identity: Identity) -> Sequence[str]:
        """Return the shown names that a key may use."""
        return [name for name in self.models if self._is_allowed(identity, name)]

    def _is_allowed(self, identity: Identity, name: str) -> bool:
        try:
            require_model_access(identity.models, name, routing=self.routing)
        except DragomanError:
            return False
        return True

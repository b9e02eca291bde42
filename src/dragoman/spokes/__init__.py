"""Spokes: processes that offer operations to a hub over a WebSocket. The protocol and both of its ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dragoman.spokes.client.spoke import Capacity, Spoke
else:  # loaded late, since a hub needs only its own end
    from dragoman.lazy_imports import lazy_names

    __getattr__ = lazy_names(__name__, {"Capacity": "client.spoke", "Spoke": "client.spoke"})

__all__ = ["Capacity", "Spoke"]

"""Spokes: processes that offer operations to a hub over a WebSocket. The protocol and both of its ends."""

from dragoman.spokes.client.spoke import Capacity, Spoke

__all__ = ["Capacity", "Spoke"]

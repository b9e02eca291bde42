"""Processes that serve operations over a WebSocket: the protocol, the hub's end and the client."""

from dragoman.spokes.client.spoke import Capacity, Spoke

__all__ = ["Capacity", "Spoke"]

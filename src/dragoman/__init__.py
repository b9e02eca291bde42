"""Dragoman: an agent hub you own."""

from dragoman.operations.context import Context as Context
from dragoman.operations.function import operation as operation

__all__ = ["Context", "operation"]

"""Registry, call protocol, approvals, ledger and the four meta-tools."""

from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context, current
from dragoman.operations.definitions.decorator import operation
from dragoman.operations.operation import Operation
from dragoman.operations.registry import Registry

__all__ = ["Calls", "Context", "Operation", "Registry", "current", "operation"]

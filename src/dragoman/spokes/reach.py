"""Reach: a spoke's own operations, and behind them those of the hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from typing_extensions import override

from dragoman.errors import ConfigError, NotFound
from dragoman.operations.operation import Operation, Run
from dragoman.operations.registry import Allow, Registry

Ask: TypeAlias = Callable[[str], Run]


class Reach(Registry):
    """What operations of a spoke can call: `get` knows its own, and takes any other for one of the hub's."""

    def __init__(self, own: Registry, ask: Ask) -> None:
        super().__init__()
        self._own = own
        self._ask = ask

    @override
    def get(self, id: str, *, allow: Allow | None = None) -> Operation:
        """The operation of this id. NotFound when it can be none.

        One of its own that wants an approval is called by way of the hub, which asks for it.
        """
        try:
            own = self._own.get(id, allow=allow)
        except NotFound as error:
            return self._distant(id, error)
        return self._distant(own.id, NotFound(f"no operation {id!r}")) if own.approval else own

    def _distant(self, id: str, error: NotFound) -> Operation:
        namespace, _, name = id.partition(".")
        try:
            return Operation(
                namespace=namespace,
                name=name,
                input_schema={"type": "object"},
                parse=dict,
                run=self._ask(id),
            )
        except ConfigError:
            raise error from None

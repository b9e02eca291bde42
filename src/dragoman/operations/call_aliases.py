"""Other names of operations, with the parameters that go with them.

A call by an alias becomes a call of the operation before anything else sees it: policy, approvals, records
and hooks know the operation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

Translate: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]


class CallAlias(msgspec.Struct, frozen=True):
    """Another name of the operation `target`; `translate` makes its input of the alias's."""

    target: str
    translate: Translate = dict

    def input(self, input: Any) -> Any:
        """Return the input of the operation; one that does not fit is unchanged, and refused there."""
        try:
            return self.translate(input) if isinstance(input, Mapping) else input
        except (TypeError, ValueError, AttributeError, OverflowError):
            return input


def rename(input: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the input with other names of parameters; None for a parameter leaves it out."""
    return {names.get(name, name): value for name, value in input.items() if value is not None}

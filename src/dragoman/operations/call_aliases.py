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
    """Another name of the operation `target`; `translate` converts the input of the alias to its input."""

    target: str
    translate: Translate = dict

    def input(self, input: Any) -> Any:
        """Return the input of the operation. An input that cannot be converted is left for it to refuse."""
        try:
            return self.translate(input) if isinstance(input, Mapping) else input
        except (TypeError, ValueError, AttributeError, OverflowError):
            return input


def rename(input: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the input with parameters renamed by `names`, without those that are None."""
    return {names.get(name, name): value for name, value in input.items() if value is not None}

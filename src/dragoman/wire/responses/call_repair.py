"""Give the calls of a relayed response ids of their own: clients find the results of calls by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.wire.tap import AnswerDefaults
from dragoman.wire.tool_calls import CallIds

CLIENT_CALLS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "apply_patch_call", "computer_call"}
)
"""Types of items that the client answers with a result for their `call_id`."""


class ResponseCallRepair:
    """The calls of one response, by the index of their item, which several events repeat."""

    def __init__(self, defaults: AnswerDefaults | None) -> None:
        self._ids = CallIds((defaults or AnswerDefaults()).new_id)
        self._ids_by_index: dict[int, str] = {}

    def repair_item(self, item: Any, index: int) -> dict[str, Any] | None:
        """Return an item with the id that it gets in place of its own; None for any other."""
        kind = item.get("type") if isinstance(item, Mapping) else None
        if not isinstance(kind, str) or kind not in CLIENT_CALLS:
            return None
        id = self.own_id(item.get("call_id"), index=index)
        return None if id == item.get("call_id") else {**item, "call_id": id}

    def own_id(self, id: Any, *, index: int) -> str:
        """Return the id of the call at an index: the first that it has had."""
        if index not in self._ids_by_index:
            self._ids_by_index[index] = self._ids.take(id)
        return self._ids_by_index[index]

    def repair_response(self, response: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return a whole response with such items; None if it needs none."""
        output = response.get("output")
        items = output if isinstance(output, list) else []
        repaired = [self.repair_item(item, index) for index, item in enumerate(items)]
        if not any(repaired):
            return None
        return {**response, "output": [new or old for new, old in zip(repaired, items, strict=True)]}

"""The text of an answer in a format, such as JSON: clients read every text of a response in it.

An agent may write before its calls, and give the value again after one that does not fit. Only the text of
its last step is the answer, and which step is the last is known once it is over.
"""

from __future__ import annotations

from collections.abc import Sequence

from dragoman import events as e
from dragoman.messages import OUTPUT_CALL
from dragoman.wire.responses.item_encoder import INPUT_EVENTS, OUTPUT_EVENTS

_CALL_EVENTS = (*INPUT_EVENTS, *OUTPUT_EVENTS)


class FinalText:
    """Leaves out the texts of all steps but the last, and the calls that give the value."""

    def __init__(self) -> None:
        self._output_calls: set[str] = set()
        self._texts: list[e.Event] = []

    def select(self, batch: Sequence[e.Event]) -> list[e.Event]:
        """Return what is shown of a batch: texts come at the end of the answer."""
        selected: list[e.Event] = []
        for event in batch:
            match event:
                case e.TextStart() | e.TextDelta() | e.TextEnd() | e.SourceUrl():
                    self._texts.append(event)
                    continue
                case e.StartStep() | e.ResetStep() | e.Finish(finish_reason="tool-calls"):
                    self._texts.clear()
                case e.Finish() | e.Abort() | e.ErrorEvent():
                    selected += self._take_texts()
                case _:
                    pass
            if not self._is_of_output_call(event):
                selected.append(event)
        return selected

    def _take_texts(self) -> list[e.Event]:
        texts, self._texts = self._texts, []
        return texts

    def _is_of_output_call(self, event: e.Event) -> bool:
        if not isinstance(event, _CALL_EVENTS):
            return False
        metadata = getattr(event, "provider_metadata", None) or {}
        if all(metadata.get(key) == value for key, value in OUTPUT_CALL.items()):
            self._output_calls.add(event.tool_call_id)
        return event.tool_call_id in self._output_calls

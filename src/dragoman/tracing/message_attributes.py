"""Message content for spans, in the shapes of OpenTelemetry's GenAI conventions.

Source: the GenAI semantic conventions, `gen_ai.input.messages` and `gen_ai.output.messages`. The bytes of
files and opaque provider data (signatures, citations) are dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.messages import FilePart, Message, Part, ReasoningPart, TextPart, ToolPart
from dragoman.redaction import redact_json
from dragoman.wire.multimodal_outputs import without_files


def instructions(text: str) -> list[dict[str, Any]]:
    """Return the value of `gen_ai.system_instructions`."""
    return [{"type": "text", "content": text}]


def input_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return `gen_ai.input.messages`; the results of a message's calls follow as a message of role `tool`."""
    converted: list[dict[str, Any]] = []
    for message in messages:
        parts = [value for part in message.parts for value in _part(part)]
        converted.append({"role": message.role, "parts": parts})
        results = [_result(part) for part in message.parts if _has_result(part)]
        if results:
            converted.append({"role": "tool", "parts": results})
    return converted


class TracedOutput:
    """Collects the content of an answer from its events."""

    def __init__(self) -> None:
        self._blocks: dict[tuple[str, str], list[str]] = {}
        self._calls: dict[str, dict[str, Any]] = {}

    def add(self, batch: Sequence[e.Event]) -> None:
        """Add the next batch of events."""
        for event in batch:
            match event:
                case e.TextDelta(id=id, delta=delta):
                    self._blocks.setdefault(("text", id), []).append(delta)
                case e.ReasoningDelta(id=id, delta=delta):
                    self._blocks.setdefault(("reasoning", id), []).append(delta)
                case e.ToolInputAvailable() | e.ToolInputError():
                    self._calls[event.tool_call_id] = _call(
                        event.tool_call_id, event.tool_name, arguments=event.input
                    )
                case _:
                    pass  # not content, or repeated in full by a later event

    def message(self) -> list[dict[str, Any]]:
        """Return the value of `gen_ai.output.messages`."""
        texts = [{"type": kind, "content": "".join(text)} for (kind, _), text in self._blocks.items()]
        return [{"role": "assistant", "parts": [*texts, *self._calls.values()]}]


def encode_attribute(value: Any, secrets: Collection[str] = ()) -> str:
    """Encode a value as JSON for an attribute, with secrets and key-like strings redacted."""
    return msgspec.json.encode(redact_json(value, secrets), enc_hook=str).decode()


def _part(part: Part) -> Iterator[dict[str, Any]]:
    match part:
        case TextPart(text=text):
            yield {"type": "text", "content": text}
        case ReasoningPart(text=text) if text:
            yield {"type": "reasoning", "content": text}
        case FilePart():
            yield _file(part)
        case ToolPart():
            arguments = None if part.input is msgspec.UNSET else part.input
            yield _call(part.tool_call_id, part.name, arguments=arguments)
        case _:
            pass  # steps, sources and data are not content


def _call(id: str, name: str, *, arguments: Any) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


def _file(part: FilePart) -> dict[str, Any]:
    fields = {"mime_type": part.media_type, "modality": part.media_type.partition("/")[0]}
    if part.url.startswith("data:"):
        return {"type": "blob", **fields, "content": ""}
    return {"type": "uri", **fields, "uri": part.url}


def _has_result(part: Part) -> bool:
    return isinstance(part, ToolPart) and part.state in ("output-available", "output-error")


def _result(part: Any) -> dict[str, Any]:
    response = part.error_text if part.state == "output-error" else without_files(part.output)
    return {"type": "tool_call_response", "id": part.tool_call_id, "response": response}

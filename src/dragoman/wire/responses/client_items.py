"""Parse the input items of a Responses request to UI messages.

Items that follow each other on the assistant's side become one message; the outputs of its calls are put into
them, and end it. Developer and system items stay in their place as system messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import BadRequest
from dragoman.messages import (
    FilePart,
    Message,
    Part,
    ProviderMetadata,
    ReasoningPart,
    Role,
    TextPart,
    ToolPart,
)
from dragoman.wire.client_request import MAX_ITEMS, check_count
from dragoman.wire.multimodal_outputs import write_multimodal_output
from dragoman.wire.openai.field_reader import (
    IgnoredFields,
    decode_body,
    describe_value,
    invalid_field,
    read_list,
    read_nonempty_string,
    read_object,
    read_optional_string,
)
from dragoman.wire.responses.client_content import parse_item_content
from dragoman.wire.responses.client_tools import (
    CUSTOM_INPUT,
    HUB_LABEL,
    SEARCH_OUTPUT,
    ClientTools,
)
from dragoman.wire.responses.compaction import COMPACTION, TRIGGER, summary_message
from dragoman.wire.responses.opaque_reasoning import call_metadata, reasoning_metadata

_ROLES: Mapping[str, Role] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
_CALL_TYPES = ("local_shell_call", "shell_call", "apply_patch_call", "computer_call", "tool_search_call")
_SILENT_TYPES = ("additional_tools",)
_OF_PROVIDERS = ("program", "mcp_list_tools", "mcp_approval_request")
"""Types of items about tools that a provider runs, other than their calls and outputs."""
_FIELDS = frozenset(
    {
        *("type", "id", "role", "status", "content", "summary", "encrypted_content", "tools", "execution"),
        *("call_id", "name", "namespace", "arguments", "input", "action", "operation", "output"),
        *("server_label", "error", "approval_request_id"),
    }
)
_SCREENSHOT = "computer_screenshot"


def list_items(value: Any) -> list[dict[str, Any]]:
    """Return the input as a list of items; a string is a user message. Raises BadRequest."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": value}]
    if not isinstance(value, list):
        raise invalid_field(value, "input", expected="a string or a list of items")
    check_count(len(value), "input", limit=MAX_ITEMS)
    return [read_object(item, f"input[{index}]") for index, item in enumerate(value)]


def item_type(item: Mapping[str, Any]) -> Any:
    """Return the type of an item; clients leave it out of messages."""
    return item.get("type") or ("message" if "role" in item else None)


class _ItemDraft(msgspec.Struct):
    """A message that may still grow."""

    id: str
    role: Role
    parts: list[Part]
    has_outputs: bool = False


class ItemParser:
    """Parses items one by one, and adds outputs to the calls that wait for them."""

    def __init__(self, tools: ClientTools, ignored: IgnoredFields) -> None:
        self.has_trigger = False
        """Whether the last item asks for a compaction of those before it."""
        self._tools = tools
        self._ignored = ignored
        self._drafts: list[_ItemDraft] = []
        self._open_calls: dict[str, deque[tuple[_ItemDraft, int]]] = {}  # by call id, which may be shared
        self._call_metadata: dict[str, ProviderMetadata] = {}
        self._unread_calls: set[str] = set()
        self._unread: tuple[str, str] | None = None  # the last item that nothing has answered, and its type

    @property
    def messages(self) -> tuple[Message, ...]:
        """The messages parsed so far, without empty ones."""
        return tuple(
            Message(draft.id, draft.role, tuple(draft.parts)) for draft in self._drafts if draft.parts
        )

    def add(self, item: Mapping[str, Any], field: str) -> None:
        """Add the next item. Raises BadRequest, with the invalid field."""
        if self.has_trigger:
            raise BadRequest(f"{field}: nothing may follow a {TRIGGER}", field=field)
        kind = item_type(item)
        self._ignored.add_unknown(item, _FIELDS, field="input[]")
        match kind:
            case "message":
                self._add_message(item, field)
            case "reasoning":
                self._add_reasoning(item, field)
            case "function_call":
                self._add_call(item, field, arguments=item.get("arguments"))
            case "custom_tool_call":
                text = read_optional_string(item.get("input"), f"{field}.input")
                self._add_call(item, field, arguments={CUSTOM_INPUT: text})
            case "mcp_call":
                self._add_mcp_call(item, field)
            case _:
                self._add_other(item, field, kind=kind)

    def finish(self) -> None:
        """End the items. BadRequest for one that asks for something and that no other provider can read."""
        if self._unread is not None:
            field, kind = self._unread
            raise BadRequest(
                f"{field}: only providers of the Responses API can read an item of the type {kind!r:.60}",
                field=f"{field}.type",
                hint="leave it out, or ask a model of a provider of type responses",
            )

    def _add_other(self, item: Mapping[str, Any], field: str, *, kind: Any) -> None:
        match kind:
            case "item_reference":
                raise BadRequest(
                    f"{field}: there is no item {describe_value(item.get('id'))}", field=f"{field}.id"
                )
            case str(kind) if kind in _SILENT_TYPES:
                return
            case str(kind) if kind in _CALL_TYPES and item.get("call_id") is not None:
                self._add_client_call(item, field, kind=kind)
            case str(kind) if kind.endswith("_output") and self._answers_call(item):
                self._add_output(item, field)
            case str(kind) if kind == TRIGGER:
                self.has_trigger = True
            case str(kind) if kind == COMPACTION:
                self._add_compaction(item, field)
            case str(kind) if kind:
                self._add_unread(item, field, kind=kind)
            case _:
                raise BadRequest(
                    f"{field}.type must be the type of an item, got {describe_value(kind)}",
                    field=f"{field}.type",
                )

    def _answers_call(self, item: Mapping[str, Any]) -> bool:
        """Return whether an output is of a call of the client, rather than of one that the provider ran."""
        id = _output_id(item)
        return id is not None and not (isinstance(id, str) and id in self._unread_calls)

    def _add_unread(self, item: Mapping[str, Any], field: str, *, kind: str) -> None:
        """Note an item without an equivalent. One that may be a question is refused if nothing answers it."""
        self._ignored.add_unknown({kind[:60]: True}, (), field="input[].type")
        if isinstance(item.get("call_id"), str):
            self._unread_calls.add(item["call_id"])
        if kind not in _OF_PROVIDERS and not kind.endswith(("_call", "_output")):
            self._unread = field, kind

    def _add_message(self, item: Mapping[str, Any], field: str) -> None:
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise invalid_field(role, f"{field}.role", expected=f"one of {', '.join(_ROLES)}")
        parts = parse_item_content(
            item.get("content"), f"{field}.content", role=_ROLES[role], ignored=self._ignored
        )
        if _ROLES[role] == "assistant":
            self._assistant(field).parts += parts
        else:
            self._drafts.append(_ItemDraft(field, _ROLES[role], list(parts)))

    def _add_compaction(self, item: Mapping[str, Any], field: str) -> None:
        text = summary_message(item)
        if text is None:
            raise BadRequest(f"{field}: only the provider that made a compaction can read it", field=field)
        self._drafts.append(_ItemDraft(field, "user", [TextPart(text)]))

    def _assistant(self, field: str) -> _ItemDraft:
        """Return the assistant's message that the next part belongs to."""
        self._unread = None
        last = self._drafts[-1] if self._drafts else None
        if last is None or last.role != "assistant" or last.has_outputs:
            last = _ItemDraft(field, "assistant", [])
            self._drafts.append(last)
        return last

    def _add_reasoning(self, item: Mapping[str, Any], field: str) -> None:
        texts = [
            read_optional_string(read_object(part, f"{field}.{name}[{index}]").get("text"), f"{field}.{name}")
            for name in ("content", "summary")
            for index, part in enumerate(read_list(item.get(name), f"{field}.{name}"))
        ]
        read_optional_string(item.get("encrypted_content"), f"{field}.encrypted_content")
        if (of_call := call_metadata(item)) is not None:
            self._add_call_metadata(*of_call)
            return
        part = ReasoningPart("\n\n".join(filter(None, texts)), provider_metadata=reasoning_metadata(item))
        if part.text or part.provider_metadata:
            self._assistant(field).parts.append(part)

    def _add_call(self, item: Mapping[str, Any], field: str, *, arguments: Any) -> None:
        name = read_nonempty_string(item.get("name"), f"{field}.name")
        namespace = read_optional_string(item.get("namespace"), f"{field}.namespace") or None
        id = read_nonempty_string(item.get("call_id"), f"{field}.call_id")
        part = call_part(self._tools.flat_name(name, namespace), arguments, id=id, field=f"{field}.arguments")
        self._put_call(part, field)

    def _add_client_call(self, item: Mapping[str, Any], field: str, *, kind: str) -> None:
        """Add a call of a tool that OpenAI defines and the client runs: its action is the input."""
        id = read_nonempty_string(item.get("call_id"), f"{field}.call_id")
        action = item.get("action") or item.get("operation") or item.get("arguments") or {}
        self._put_call(call_part(kind.removesuffix("_call"), action, id=id, field=f"{field}.action"), field)

    def _add_mcp_call(self, item: Mapping[str, Any], field: str) -> None:
        """Add a call that the hub ran: complete, with its output."""
        name = read_nonempty_string(item.get("name"), f"{field}.name")
        label = item.get("server_label")
        id = read_nonempty_string(item.get("id"), f"{field}.id")
        flat = name if label in (None, HUB_LABEL) else self._tools.flat_name(name, str(label))
        part = call_part(flat, item.get("arguments"), id=id, field=f"{field}.arguments")
        error = item.get("error")
        if error is not None:
            part = replace(part, state="output-error", error_text=_error_text(error))
        else:
            part = replace(part, state="output-available", output=item.get("output"))
        draft = self._assistant(field)
        draft.parts.append(part)
        draft.has_outputs = True

    def _add_call_metadata(self, id: str, metadata: ProviderMetadata) -> None:
        """Add what is opaque in a call, which may come before or after it."""
        waiting = self._open_calls.get(id)
        draft, index = waiting[-1] if waiting else (None, 0)
        part = None if draft is None else draft.parts[index]
        if draft is not None and isinstance(part, ToolPart):
            draft.parts[index] = replace(part, call_provider_metadata=metadata)
        else:
            self._call_metadata[id] = metadata

    def _put_call(self, part: ToolPart, field: str) -> None:
        metadata = self._call_metadata.pop(part.tool_call_id, None)
        if metadata is not None:
            part = replace(part, call_provider_metadata=metadata)
        draft = self._assistant(field)
        waiting = self._open_calls.setdefault(part.tool_call_id, deque())
        if waiting and waiting[0][0] is not draft:  # a reused id refers to the newest step
            waiting.clear()
        waiting.append((draft, len(draft.parts)))
        draft.parts.append(part)

    def _add_output(self, item: Mapping[str, Any], field: str) -> None:
        id = read_nonempty_string(_output_id(item), f"{field}.call_id")
        waiting = self._open_calls.get(id)
        if not waiting:
            raise BadRequest(
                f"{field}.call_id: there is no earlier call {describe_value(id)} without an output",
                field=f"{field}.call_id",
            )
        draft, index = waiting.popleft()
        part = draft.parts[index]
        if isinstance(part, ToolPart):
            output = (
                self._tools.describe_found(item.get("tools"), f"{field}.tools")
                if item.get("type") == SEARCH_OUTPUT
                else self._output(item.get("output"), f"{field}.output")
            )
            draft.parts[index] = _with_output(part, output, failed=item.get("status") == "failed")
        draft.has_outputs = True

    def _output(self, value: Any, field: str) -> Any:
        """Return the text of an output; with files, its parts in order; an object as it is."""
        if isinstance(value, dict) and value.get("type") == _SCREENSHOT:
            value = [{**value, "type": "input_image"}]
        if isinstance(value, dict):
            return value
        if isinstance(value, list) and not all(isinstance(part, dict) and "type" in part for part in value):
            return value
        parts = parse_item_content("" if value is None else value, field, role="user", ignored=self._ignored)
        if any(isinstance(part, FilePart) for part in parts):
            return write_multimodal_output(parts)
        return "\n".join(part.text for part in parts if not isinstance(part, FilePart))


def _output_id(item: Mapping[str, Any]) -> Any:
    """Return the id of the call that an output is for: that of a local shell has it as its own."""
    id = item.get("call_id")
    return item.get("id") if id is None and item.get("type") == "local_shell_call_output" else id


def _with_output(part: ToolPart, output: Any, *, failed: bool) -> ToolPart:
    if failed and isinstance(output, str):
        return replace(part, state="output-error", error_text=output or "the call failed")
    return replace(part, state="output-available", output=output)


def _error_text(error: Any) -> str:
    """Return the text of an `mcp_call`'s error: a string, or an object with content."""
    content = error.get("content") if isinstance(error, Mapping) else None
    texts = [part.get("text") for part in content or () if isinstance(part, Mapping)]
    if texts and all(isinstance(text, str) for text in texts):
        return "\n".join(map(str, texts))
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


def call_part(name: str, arguments: Any, *, id: str, field: str) -> ToolPart:
    """Return the part of a call. Arguments that are not an object are kept as `raw_input`."""
    part = ToolPart(f"tool-{name}", id, "input-available", input={})
    if isinstance(arguments, dict):
        return replace(part, input=arguments)
    text = read_optional_string(arguments, field)
    if text.strip() in ("", "null", "{}"):
        return part
    try:
        parsed = decode_body(text.encode())
    except ValueError:
        parsed = None
    return replace(part, input=parsed) if isinstance(parsed, dict) else replace(part, raw_input=text)

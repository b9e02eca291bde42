"""Repair chunks of a relayed answer that OpenAI's SDKs cannot read.

The SDKs build an answer by adding up its chunks. They skip a chunk with another `object`, and fail at, or
misread, an index that is missing, a `delta` of null, content that is a list, calls whose id or name comes
with each fragment, calls without a type, and an answer without a role. Only such chunks are changed.
Source: wire notes on providers, §4.2 to §4.4.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.events import Event, ToolInputDelta, ToolInputStart
from dragoman.json_decoding import DECODE_ERRORS, is_well_formed, replace_surrogates
from dragoman.wire.json_codec import as_text, encode_document
from dragoman.wire.openai.chunk import OpenAIToolCallDelta, as_integer, lenient_tool_call, list_choices
from dragoman.wire.openai.event_builder import tool_call_fragment
from dragoman.wire.openai.usage import has_counts
from dragoman.wire.tap import AnswerDefaults
from dragoman.wire.text_block_writer import SurrogateJoiner
from dragoman.wire.tool_calls import ArgumentsCompleteness, ToolCallAssembler, lengthen_name

MAX_INDEX = 4096  # of an entry in a list; a larger one is replaced
CHUNK = "chat.completion.chunk"
_TEXTS = ("reasoning_content", "reasoning", "refusal")
_CALL_TYPES = ("function", "custom")
_LISTS = ("reasoning_details", "thinking_blocks", "annotations", "images")
_MERGED_LISTS = ("reasoning_details", "thinking_blocks")  # entries of one type in a row are one entry


class ChunkRepair:
    """Repairs the chunks of one stream, depending on the earlier ones."""

    def __init__(self, defaults: AnswerDefaults) -> None:
        self.usage: Any = None  # the last usage that was passed on
        self.has_head = False  # a chunk has named the answer
        self.has_content = False  # an earlier chunk has content: a whole message repeats it
        self._defaults = defaults
        self._head: dict[str, Any] = {"id": defaults.id, "created": defaults.created, "model": defaults.model}
        self._choices: dict[int, _ChoiceState] = {}
        self._touched: list[_ChoiceState] = []  # by the current chunk

    def set_head(self, id: str, *, created: int, model: str) -> None:
        """Set the id, time and model of the answer, for chunks without them."""
        head = {"id": id, "created": created, "model": model}
        self._head |= {name: value for name, value in head.items() if value}
        self.has_head = bool(id)

    def begin_chunk(self) -> None:
        """Begin a chunk. `repair` does not change what `accept_calls` and `accept_list` accept of it."""
        for state in self._touched:
            state.accepted.clear()
        self._touched.clear()

    def accept_calls(self, index: int, fragments: Sequence[OpenAIToolCallDelta]) -> bool:
        """Return whether the SDKs read the calls of a delta correctly; False if it must be repaired."""
        return self._choice(index).accept(fragments)

    def accept_role(self, index: int, role: str) -> bool:
        """Return whether this is a choice's first role, and `assistant`; the SDKs concatenate roles."""
        return self._choice(index).accept_role(role)

    def accept_function_call(self, index: int, value: Any) -> bool:
        """Return whether the SDKs can add a deprecated `function_call` to the earlier ones."""
        return self._choice(index).accept_function_call(value)

    def accept_list(self, index: int, name: str, *, entries: Sequence[Any]) -> bool:
        """Return whether the SDKs can add a list of a delta to the earlier ones."""
        return self._choice(index).accept_list(name, entries)

    def repair(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chunk as the SDKs expect it; equal to the chunk if nothing is wrong with it."""
        usage = self._repair_usage(chunk)
        repaired = {
            **chunk,
            **self._repair_head(chunk),
            "choices": [
                self._repair_choice(choice, position)
                for position, choice in enumerate(objects_in(list_choices(chunk)))
            ],
        }
        return repaired if usage is None else {**repaired, "usage": usage}

    def accept_finish(self, index: int, reason: str) -> bool:
        """Return whether a choice may end with a chunk that adds nothing: no role and no part of a call.

        The SDKs keep the last of several reasons, so that a later `stop` would hide that an answer is cut.
        """
        state = self._choice(index)
        return (
            state.join_reason(reason) == reason
            and state.has_role
            and not state.reassembles
            and not state.lacks_arguments
        )

    def finish(self, indexes: Iterable[int]) -> dict[str, Any]:
        """Return the chunk that ends choices for which the server has sent no finish reason."""
        choices = []
        for index in sorted(indexes):
            state = self._choice(index)
            fragments = state.flush()
            choices.append(
                {
                    "index": index,
                    "delta": state.add_role({"tool_calls": fragments} if fragments else {}),
                    "finish_reason": "tool_calls" if state.has_calls else "stop",
                }
            )
        chunk = {**self._head, "object": CHUNK, "choices": choices}
        return chunk if self.usage is None else {**chunk, "usage": self.usage}

    def _choice(self, index: int) -> _ChoiceState:
        state = self._choices.get(index)
        if state is None:
            state = self._choices[index] = _ChoiceState(self._defaults)
        if not self._touched or self._touched[-1] is not state:
            self._touched.append(state)
        return state

    def _repair_head(self, chunk: Mapping[str, Any]) -> dict[str, Any]:
        created = as_integer(chunk.get("created"))
        id = chunk["id"] if isinstance(chunk.get("id"), str) else self._head["id"]
        created = self._head["created"] if created is None else created
        model = chunk["model"] if isinstance(chunk.get("model"), str) else self._head["model"]
        self.set_head(id, created=created, model=model)
        return {"id": id, "object": CHUNK, "created": created, "model": model}

    def _repair_usage(self, chunk: Mapping[str, Any]) -> Any:
        """Return the usage to set: from another field of the chunk, or the last one; None to keep its own."""
        groq = chunk.get("x_groq")
        if has_counts(chunk.get("usage")):
            self.usage = chunk["usage"]
            return None
        if isinstance(groq, Mapping) and has_counts(groq.get("usage")):
            self.usage = groq["usage"]
        for choice in objects_in(list_choices(chunk)):
            if has_counts(choice.get("usage")):
                self.usage = choice["usage"]
        return self.usage

    def _repair_choice(self, choice: Mapping[str, Any], position: int) -> dict[str, Any]:
        index = as_integer(choice.get("index"))
        index = position if index is None or index < 0 else index
        state = self._choice(index)
        reason = choice.get("finish_reason")
        finish_reason = state.join_reason(reason) if isinstance(reason, str) and reason else None
        delta = state.repair_delta(find_delta(choice, is_first=not (state.started or self.has_content)))
        if finish_reason is not None and (fragments := state.flush()):
            delta["tool_calls"] = [*delta.get("tool_calls", ()), *fragments]
        if finish_reason is not None:
            delta = state.add_role(delta)
        state.started = state.started or bool(delta.keys() - {"role"})
        repaired = {**choice, "index": index, "delta": delta, "finish_reason": finish_reason}
        repaired.pop("message", None)  # OpenAI's library for Node would treat it as the answer so far
        logprobs = choice.get("logprobs")
        if isinstance(logprobs, Mapping):
            repaired["logprobs"] = _repair_logprobs(logprobs)
        elif logprobs is not None:
            del repaired["logprobs"]
        return repaired


class _ChoiceState:
    """One choice of a stream: its calls and lists so far."""

    def __init__(self, defaults: AnswerDefaults) -> None:
        self.accepted: set[str] = set()  # fields of the current delta
        self.started = False
        self.has_calls = False
        self.has_role = False
        self._finish_reason: str | None = None
        self._function_name = ""  # of a function call of the old form
        self._defaults = defaults
        self._ids: set[str] = set()  # of the calls
        self._names: list[str] = []  # of the calls, by index
        self._joiners: dict[str, SurrogateJoiner] = {}  # by field: halves of a pair come one by one
        self._arguments: list[ArgumentsCompleteness | None] = []  # of the calls, by index
        self.lacks_arguments: set[int] = set()  # the calls whose arguments have not been a text yet
        self._fragments: list[OpenAIToolCallDelta] = []  # all that were passed on as they are
        self._assembler: ToolCallAssembler | None = None  # once a fragment had to be repaired
        self._indexes: dict[str, int] = {}  # by call id, of the assembled calls
        self._entries: dict[str, list[Any]] = {}  # the types of a list's entries

    @property
    def reassembles(self) -> bool:
        """Whether the calls are assembled, since a fragment had to be repaired."""
        return self._assembler is not None

    def join_reason(self, reason: str) -> str:
        """Return the finish reason of the choice after another one: the first, unless that was `stop`."""
        self._finish_reason = join_reasons(self._finish_reason, reason)
        return self._finish_reason

    def accept_role(self, role: str) -> bool:
        """Return whether this is the first role of the choice, and `assistant`."""
        if self.has_role or role != "assistant":
            return False
        self.has_role = True
        self.accepted.add("role")
        return True

    def add_role(self, delta: dict[str, Any]) -> dict[str, Any]:
        """Return the last delta of the choice, with a role if none has come before."""
        lacks_role, self.has_role = not self.has_role, True
        return {**delta, "role": "assistant"} if lacks_role else delta

    def _repair_role(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the delta with its role if this is the first one, which is always the assistant's."""
        if delta.get("role") is None or "role" in self.accepted:
            return {**delta}
        return self.add_role({name: value for name, value in delta.items() if name != "role"})

    def accept_function_call(self, value: Any) -> bool:
        """Return whether this begins a deprecated `function_call`, or continues it."""
        if not isinstance(value, Mapping) or not isinstance(value.get("arguments"), str):
            return False
        name = value.get("name", "") if self._function_name == "" else ""
        if not isinstance(name, str) or ("name" in value) == bool(self._function_name):
            return False
        self._function_name = self._function_name or name
        if self._function_name:
            self.accepted.add("function_call")
        return bool(self._function_name)

    def _repair_function_call(self, value: Any) -> dict[str, Any] | None:
        """Return a deprecated `function_call`; None for one without a name and arguments."""
        fields = value if isinstance(value, Mapping) else {}
        name, arguments = as_text(fields.get("name")), as_text(fields.get("arguments"))
        if not self._function_name and name:
            self._function_name = name
            return {"name": name, "arguments": arguments or ""}
        return {"arguments": arguments} if arguments and self._function_name else None

    def accept(self, fragments: Sequence[OpenAIToolCallDelta]) -> bool:
        """Return whether these fragments continue the calls in OpenAI's own form."""
        self.has_calls = self.has_calls or bool(fragments)
        if self._assembler is not None:
            return False
        if not all(map(self._accept_fragment, fragments)):
            self._reassemble()
            return False
        self._fragments += fragments
        self.accepted.add("tool_calls")
        return True

    def _accept_fragment(self, fragment: OpenAIToolCallDelta) -> bool:
        index, function = fragment.index, fragment.function
        name = (function.name if function is not None else None) or ""
        arguments = function.arguments if function is not None else None
        if index is None or not 0 <= index <= len(self._names) or isinstance(arguments, dict):
            return False
        if not _has_type(fragment, is_first=index == len(self._names)):
            return False
        if index == len(self._names):
            if not fragment.id or fragment.id in self._ids or not (name or fragment.custom):
                return False
            self._ids.add(fragment.id)
            self._names.append(name)
            self._arguments.append(None)
            if function is not None and not fragment.custom:
                self.lacks_arguments.add(index)
        elif fragment.id or (name and (self._arguments[index] or name == self._names[index])):
            return False  # repeated: the SDKs would add them up
        else:
            self._names[index] = lengthen_name(self._names[index], name)
        return self._accept_arguments(index, arguments)

    def _accept_arguments(self, index: int, arguments: str | None) -> bool:
        """Return whether these continue the arguments: no object begins after a complete one."""
        if arguments is not None:
            self.lacks_arguments.discard(index)
        if not arguments:
            return True
        before = self._arguments[index]
        if before is None:
            before = self._arguments[index] = ArgumentsCompleteness()
        elif arguments.startswith("{") and before.is_complete():
            return False
        before.add(arguments)
        return True

    def _reassemble(self) -> None:
        """Begin to assemble the calls, from those that were passed on."""
        if self._assembler is not None:
            return
        self._assembler = ToolCallAssembler(new_id=self._defaults.new_id)
        for fragment in self._fragments:
            self._assembler.add(tool_call_fragment(fragment))
        self._encode_events(self._assembler.flush())
        self._fragments.clear()

    def accept_list(self, name: str, entries: Sequence[Any]) -> bool:
        """Return whether each entry has an index, or these are the first ones and none has."""
        before = self._entries.setdefault(name, [])
        types = [entry.get("type") if isinstance(entry, Mapping) else None for entry in entries]
        values = [entry.get("index") if isinstance(entry, Mapping) else None for entry in entries]
        indexes = [index for index in values if type(index) is int and 0 <= index <= MAX_INDEX]
        if len(indexes) == len(values):
            before += [None] * (1 + max(indexes, default=-1) - len(before))
            for index, entry_type in zip(indexes, types, strict=True):
                before[index] = entry_type
            self.accepted.add(name)
            return True
        if before or any(index is not None for index in values):
            return False
        before += types
        self.accepted.add(name)
        return True

    def repair_delta(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        """Return the delta in OpenAI's own form."""
        repaired = {**self._repair_role(delta), **repair_content(delta)}
        if "function_call" in delta and "function_call" not in self.accepted:
            repaired["function_call"] = self._repair_function_call(delta["function_call"])
        for name in ("content", *_TEXTS):
            text = as_text(repaired.get(name))
            if text is not None:
                repaired[name] = self._joiners.setdefault(name, SurrogateJoiner()).join(text)
        for name, entries in repaired.items():
            if name not in self.accepted and _is_merged_list(name, entries):
                repaired[name] = self._repair_list(name, entries)
        if delta.get("tool_calls") is not None and "tool_calls" not in self.accepted:
            fragments = self._repair_calls(delta["tool_calls"])
            if fragments:
                repaired["tool_calls"] = fragments
            else:
                del repaired["tool_calls"]
        return repaired

    def _repair_list(self, name: str, entries: Sequence[Any]) -> Sequence[Any]:
        if self.accept_list(name, entries):
            return entries
        return [self._with_index(name, entry) for entry in objects_in(entries)]

    def _with_index(self, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        types = self._entries.setdefault(name, [])
        index = as_integer(entry.get("index"))
        if index is None or not 0 <= index <= MAX_INDEX:
            continues = name in _MERGED_LISTS and types and types[-1] == entry.get("type")
            index = len(types) - 1 if continues else len(types)
        types += [None] * (1 + index - len(types))
        types[index] = entry.get("type")
        return {**entry, "index": index}

    def _repair_calls(self, value: Any) -> list[dict[str, Any]]:
        calls = objects_in([value] if isinstance(value, Mapping) else value)
        fragments = list(map(lenient_tool_call, calls))
        if not all(map(_has_plain_arguments, calls)):
            self.has_calls = True
            self._reassemble()
        if self.accept(fragments):
            return [
                {**call, "index": fragment.index} for call, fragment in zip(calls, fragments, strict=True)
            ]
        return self._assemble(fragments)

    def _assemble(self, fragments: Sequence[OpenAIToolCallDelta]) -> list[dict[str, Any]]:
        if self._assembler is None:
            return []
        for fragment in fragments:
            self._assembler.add(tool_call_fragment(fragment))
        return self._encode_events(self._assembler.take_events())

    def flush(self) -> list[dict[str, Any]]:
        """Return the fragments of calls that wait for their name or arguments, at the finish."""
        if self._assembler is not None:
            return self._encode_events(self._assembler.flush())
        indexes = sorted(self.lacks_arguments)
        self.lacks_arguments.clear()
        return [{"index": index, "function": {"arguments": "{}"}} for index in indexes]

    def _encode_events(self, events: Sequence[Event]) -> list[dict[str, Any]]:
        fragments: list[dict[str, Any]] = []
        for event in events:
            match event:
                case ToolInputStart(tool_call_id=id, tool_name=name):
                    index = self._indexes[id] = len(self._indexes)
                    function = {"name": name, "arguments": ""}
                    extra = (event.provider_metadata or {}).get("openai", {}).get("extra_content")
                    header = {"index": index, "id": id, "type": "function", "function": function}
                    fragments.append({**header, "extra_content": extra} if extra else header)
                case ToolInputDelta(tool_call_id=id, input_text_delta=arguments):
                    index = self._indexes[id]
                    if fragments and fragments[-1]["index"] == index:
                        fragments[-1]["function"]["arguments"] += arguments
                    else:
                        fragments.append({"index": index, "function": {"arguments": arguments}})
                case _:
                    pass
        return fragments


def join_reasons(first: str | None, later: str) -> str:
    """Return the finish reason of a choice that has one already: the first, unless that was `stop`."""
    return later if first in (None, "", "stop") else first or later


def find_delta(choice: Mapping[str, Any], *, is_first: bool) -> Mapping[str, Any]:
    """Return the delta of a choice; a first chunk may have the whole message instead, or only its text."""
    delta, message, text = choice.get("delta"), choice.get("message"), choice.get("text")
    if isinstance(delta, Mapping) and (delta or not is_first):
        return delta
    if is_first and isinstance(message, Mapping):
        calls = message.get("tool_calls")
        if not isinstance(calls, list):
            return message
        numbered = [{"index": index, **call} for index, call in enumerate(objects_in(calls))]
        return {**message, "tool_calls": numbered}
    return {"content": text} if isinstance(text, str) else {}


def _has_type(fragment: OpenAIToolCallDelta, *, is_first: bool) -> bool:
    """Return whether a fragment has a part of the call, and a valid type, which only the first one needs."""
    if fragment.function is None and not fragment.custom:
        return False
    return fragment.type in _CALL_TYPES or (fragment.type is msgspec.UNSET and not is_first)


def _is_merged_list(name: str, value: Any) -> bool:
    """Return whether the SDKs merge the entries of a list of a delta by their indexes."""
    if not isinstance(value, list) or name in ("content", "tool_calls"):
        return False
    return name in _LISTS or any(isinstance(entry, Mapping) for entry in value)


def _repair_logprobs(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the log probabilities without what the SDKs cannot iterate over."""
    return {
        name: entries
        for name, entries in value.items()
        if name not in ("content", "refusal") or isinstance(entries, list | None)
    }


def _has_plain_arguments(call: Mapping[str, Any]) -> bool:
    if not isinstance(call.get("id"), str | None):
        return False
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    return arguments is None or (isinstance(arguments, str) and is_well_formed(arguments))


def repair_content(delta: Mapping[str, Any]) -> dict[str, Any]:
    """Split content that is a list, or of another type, into text, reasoning, refusal and images."""
    content = delta.get("content")
    if content is None or isinstance(content, str):
        return {}
    texts: list[str] = []
    reasoning: list[str] = []
    refusals: list[str] = []
    images: list[Any] = []
    for part in content if isinstance(content, list) else [content]:
        part_type = part.get("type") if isinstance(part, Mapping) else "text"
        if part_type in ("thinking", "reasoning"):
            reasoning.append(as_text(part.get("thinking") or part.get("reasoning")) or as_text(part) or "")
        elif part_type == "refusal":
            refusals.append(as_text(part.get("refusal")) or "")
        elif part_type == "image_url":
            images.append(part)
        else:
            texts.append(as_text(part) or "")
    fields: dict[str, Any] = {"content": "".join(texts) if texts or not (reasoning or images) else None}
    if images:
        fields["images"] = [*objects_in(delta.get("images")), *images]
    if reasoning:
        fields["reasoning_content"] = "".join(reasoning)
    return {**fields, "refusal": "".join(refusals)} if refusals else fields


def objects_in(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects of a list; none of anything else."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def is_same_json(value: Mapping[str, Any], frame: bytes) -> bool:
    """Return whether a frame is the JSON of this object, comparing encoded texts: in Python, `0 == 0.0`."""
    try:
        original = msgspec.json.decode(frame)
    except DECODE_ERRORS:
        return False
    return isinstance(original, dict) and encode_repaired(original) == encode_repaired(value)


def encode_repaired(value: Mapping[str, Any]) -> bytes:
    """Encode a repaired chunk or document."""
    try:
        return encode_document(value)
    except (UnicodeEncodeError, OverflowError):  # a lone surrogate, or an integer beyond 64 bits
        return json.dumps(replace_surrogates(value), separators=(",", ":")).encode()

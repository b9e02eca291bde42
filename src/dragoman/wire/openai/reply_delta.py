"""Deltas: what each event of an answer adds to a chat.completions message.

One telling for both kinds of client: a stream sends each delta, a whole answer is their sum. Every list in a
delta holds objects with an `index`, counted from 0 without holes, because the SDKs add them up by it. What
OpenAI has no word for (documents, files that are no images, calls that the provider ran itself) is left out.
Source: wire notes on providers, §10.2 and §10.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from dragoman import events as e
from dragoman.events import ToolInputAvailable, ToolInputDelta, ToolInputError, ToolInputStart
from dragoman.messages import ProviderMetadata

# ---- Calls out: the tool calls of an answer as fragments for an OpenAI client, one call after the other.
# OpenAI's SDK takes a call for complete once a fragment of another one comes. So what a model writes of a
# second call waits until the first is whole. Indexes count the calls that the client sees, from 0 on.
# Source: wire notes on providers, §4.3 and §10.5.

Fragment = dict[str, Any]
Named: TypeAlias = ToolInputStart | ToolInputAvailable | ToolInputError
Happened: TypeAlias = Named | ToolInputDelta

CALLS = (ToolInputStart, ToolInputDelta, ToolInputAvailable, ToolInputError)
_encoder = msgspec.json.Encoder()


class Calls:
    """Tells the calls of one answer. Those that the provider runs itself are not the client's to see."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._turn = 0  # the index of the call that may speak

    def __len__(self) -> int:
        return len(self._calls)

    def tell(self, event: Happened) -> list[Fragment]:
        """The fragments that can be told now."""
        call = self._by_id.get(event.tool_call_id)
        if call is None:
            if isinstance(event, ToolInputDelta) or event.provider_executed:
                return []
            call = self._by_id[event.tool_call_id] = _Call(event, index=len(self._calls))
            self._calls.append(call)
        call.hear(event)
        return call.take() if call.index < self._turn else self._drain()

    def write(self, event: ToolInputDelta) -> int | None:
        """Take more arguments of the call whose turn it is: its index; None when `tell` has to see it."""
        call = self._by_id.get(event.tool_call_id)
        if call is None or call.blank or call.index != len(self._calls) - 1 or call.index != self._turn:
            return None
        call.told.append(event.input_text_delta)
        return call.index

    def rest(self) -> list[Fragment]:
        """What still waits, at the end of the answer."""
        waiting = self._calls[self._turn :]
        self._turn = len(self._calls)
        return [fragment for call in waiting for fragment in call.take()]

    def _drain(self) -> list[Fragment]:
        fragments: list[Fragment] = []
        while self._turn < len(self._calls):
            call = self._calls[self._turn]
            fragments += call.take()
            if not call.ended and (call is self._calls[-1] or not call.is_whole()):
                break
            self._turn += 1
        return fragments


class _Call:
    """A call under way: what of its arguments was told, and what was not yet."""

    def __init__(self, event: Named, *, index: int) -> None:
        self.index = index
        self.blank = True  # nothing but white space yet
        self.ended = False
        self.told: list[str] = []
        self._header: Fragment | None = {"index": index, "id": event.tool_call_id, "type": "function"}
        self._name = event.tool_name
        self._untold: list[str] = []

    def hear(self, event: Happened) -> None:
        """Take what happened to the call; the end says its arguments if nothing has said them yet."""
        match event:
            case ToolInputStart():
                pass
            case ToolInputDelta(input_text_delta=piece):
                self._add(piece)
            case ToolInputAvailable():
                self.ended = True
                if self.blank:
                    self._add(_written({} if event.input is None else event.input))
            case ToolInputError():
                self.ended = True
                if not (self.told or self._untold):
                    self._add(_written("" if event.input is None else event.input))

    def take(self) -> list[Fragment]:
        """What was not told yet, in one fragment; the first says which call it is."""
        arguments = "".join(self._untold)
        self.told += self._untold
        self._untold = []
        header, self._header = self._header, None
        if header is not None:
            return [{**header, "function": {"name": self._name, "arguments": arguments}}]
        return [{"index": self.index, "function": {"arguments": arguments}}] if arguments else []

    def is_whole(self) -> bool:
        """Whether the arguments are all there, as far as one can see."""
        text = "".join(self.told)
        if not text.rstrip().endswith("}"):
            return False
        try:
            msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        return True

    def _add(self, piece: str) -> None:
        if piece:
            self._untold.append(piece)
            self.blank = self.blank and piece.isspace()


def _written(arguments: Any) -> str:
    """Arguments as text; what cannot be read as JSON stays verbatim."""
    return arguments if isinstance(arguments, str) else _encoder.encode(arguments).decode()


FORMAT = "anthropic-claude-v1"

Delta = dict[str, Any]
Block: TypeAlias = (
    e.TextStart | e.TextDelta | e.TextEnd | e.ReasoningStart | e.ReasoningDelta | e.ReasoningEnd
)
_BLOCKS = (e.TextStart, e.TextDelta, e.TextEnd, e.ReasoningStart, e.ReasoningDelta, e.ReasoningEnd)


class _Thought(msgspec.Struct):
    """An open reasoning block."""

    pieces: list[str]
    metadata: ProviderMetadata


class Deltas:
    """Tells one answer. `finish` is set once the answer is over."""

    def __init__(self) -> None:
        self.finish: e.FinishStep | None = None
        self.length = 0  # of the text so far, in characters
        self.text: str | None = None  # the open text block, if it is no refusal and has begun
        self._begun = False
        self._refusals: set[str] = set()
        self._refused = False
        self._thoughts: dict[str, _Thought] = {}
        self.calls = Calls()
        self._counts = {"reasoning_details": 0, "annotations": 0, "images": 0}

    def tell(self, event: e.Event) -> Delta | None:
        """What the event adds; None when that is nothing. The first delta names the role."""
        if self.finish is not None:
            return None
        delta = self._tell_block(event) if isinstance(event, _BLOCKS) else self._tell_rest(event)
        if delta is None or self._begun:
            return delta
        self._begun = True
        return {"role": "assistant", "content": None} | delta

    def think(self, event: e.ReasoningDelta) -> bool:
        """Take more of an open reasoning block as it is; False when `tell` has to see it."""
        thought = self._thoughts.get(event.id)
        if thought is None or not self._begun or not event.delta or event.provider_metadata is not None:
            return False
        thought.pieces.append(event.delta)
        return True

    def _tell_block(self, event: Block) -> Delta | None:
        match event:
            case e.TextStart():
                self._open_text(event)
            case e.TextDelta():
                return self._text(event)
            case e.TextEnd():
                self.text = None
            case e.ReasoningStart():
                self._thoughts[event.id] = _Thought([], dict(event.provider_metadata or {}))
            case e.ReasoningDelta():
                return self._think(event)
            case e.ReasoningEnd():
                return self._close_thought(event)
        return None

    def _tell_rest(self, event: e.Event) -> Delta | None:
        if isinstance(event, CALLS):
            fragments = self.calls.tell(event)
            return {"tool_calls": fragments} if fragments else None
        match event:
            case e.SourceUrl():
                return self._cite(event)
            case e.File():
                return self._show(event)
            case e.FinishStep():
                return self._finish(event)
            case _:
                return None

    def _open_text(self, event: e.TextStart) -> None:
        if (event.provider_metadata or {}).get("openai", {}).get("refusal"):
            self._refusals.add(event.id)
        else:
            self._refusals.discard(event.id)

    def _text(self, event: e.TextDelta) -> Delta | None:
        if not event.delta:
            return None
        if event.id in self._refusals:
            self._refused = True
            return {"refusal": event.delta}
        self.text = event.id
        self.length += len(event.delta)
        return {"content": event.delta}

    def _think(self, event: e.ReasoningDelta) -> Delta | None:
        thought = self._thoughts.setdefault(event.id, _Thought([], {}))
        thought.pieces.append(event.delta)
        _merge(thought.metadata, event.provider_metadata)
        return {"reasoning_content": event.delta} if event.delta else None

    def _close_thought(self, event: e.ReasoningEnd) -> Delta | None:
        thought = self._thoughts.pop(event.id, None) or _Thought([], {})
        _merge(thought.metadata, event.provider_metadata)
        entries = _details("".join(thought.pieces), thought.metadata)
        numbered = [self._number("reasoning_details", entry) for entry in entries]
        return {"reasoning_details": numbered} if numbered else None

    def _cite(self, event: e.SourceUrl) -> Delta:
        """The citation stands where the text has got to."""
        place = {"start_index": self.length, "end_index": self.length}
        citation = {"url": event.url, "title": event.title or event.url, **place}
        entry = {"type": "url_citation", "url_citation": citation}
        return {"annotations": [self._number("annotations", entry)]}

    def _show(self, event: e.File) -> Delta | None:
        if not event.media_type.startswith("image/"):
            return None
        return {"images": [self._number("images", {"type": "image_url", "image_url": {"url": event.url}})]}

    def _finish(self, event: e.FinishStep) -> Delta | None:
        """A finish; one that says that the answer is broken or not over is none."""
        if event.finish_reason not in FINISHES:
            return None
        self.finish, self.text = event, None
        self._thoughts.clear()
        rest = self.calls.rest()
        delta: Delta = {"tool_calls": rest} if rest else {}
        if event.finish_reason == "content-filter" and not self._refused:
            details = (event.provider_metadata or {}).get("anthropic", {}).get("stopDetails")
            reason = details.get("explanation") if isinstance(details, Mapping) else None
            if isinstance(reason, str) and reason:
                self._refused, delta["refusal"] = True, reason
        if not (self.length or self.calls or self._refused):
            delta["content"] = ""  # an answer that says nothing is an empty one, not one without content
        return delta

    def _number(self, name: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        index = self._counts[name]
        self._counts[name] += 1
        return {"index": index, **{key: value for key, value in entry.items() if key != "index"}}


FINISHES: Mapping[str | None, str] = {
    "stop": "stop",
    "length": "length",
    "max-steps": "length",
    "content-filter": "content_filter",
    "tool-calls": "tool_calls",
    "other": "stop",  # the provider did end the answer, with a word of its own
}


def _merge(known: ProviderMetadata, said: ProviderMetadata | None) -> None:
    for family, values in (said or {}).items():
        known[family] = {**known.get(family, {}), **values}


def _details(text: str, metadata: ProviderMetadata) -> list[dict[str, Any]]:
    """What must come back unchanged with the block's text, as entries of `reasoning_details`."""
    kept = metadata.get("anthropic", {})
    origin = {"format": FORMAT, **({"provider": kept["provider"]} if kept.get("provider") else {})}
    if kept.get("redactedData"):
        return [{"type": "reasoning.encrypted", "data": kept["redactedData"], **origin}]
    if kept.get("signature"):
        return [{"type": "reasoning.text", "text": text, "signature": kept["signature"], **origin}]
    entries = metadata.get("openai", {}).get("reasoning_details")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

"""Answer: the frames of one Anthropic message become blocks, tool calls, sources and a finish.

Blocks are told apart by their `index`. What Anthropic runs itself becomes calls that the provider executed;
blocks of unknown kinds are kept as they are. Source: wire notes on providers, §6.3 to §6.5.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from dragoman.errors import ProviderError
from dragoman.events import (
    Event,
    FinishReason,
    FinishStep,
    SourceDocument,
    ToolOutputAvailable,
    ToolOutputError,
)
from dragoman.wire.anthropic.blocks import Block, Call, Raw, Text, Thinking
from dragoman.wire.anthropic.frame import Delta, Frame, failure
from dragoman.wire.anthropic.models import FAMILY, sealed
from dragoman.wire.anthropic.usage import Tally
from dragoman.wire.sources import Sources

# ---- Citations: what a text quotes, kept as it came, and each source told once.

_KINDS = {"page_location": "application/pdf"}


class Citations:
    """Remembers which sources one answer has told."""

    def __init__(self) -> None:
        self._links = Sources()
        self._documents: set[str] = set()

    def tell(self, citation: Mapping[str, Any]) -> list[Event]:
        """The source of a citation, if it is new: a web page, or a document of the conversation."""
        title = citation.get("title")
        for name in ("url", "source"):
            link = citation.get(name)
            if isinstance(link, str) and link.startswith(("http://", "https://")):
                return self._links.cite([{"url": link, "title": title}])
        number = citation.get("document_index", citation.get("search_result_index"))
        if type(number) is not int:
            return []
        place = f"{'document' if 'document_index' in citation else 'search-result'}-{number}"
        if place in self._documents:
            return []
        self._documents.add(place)
        kind = _KINDS.get(str(citation.get("type")), "text/plain")
        named = citation.get("document_title") or title or citation.get("source")
        return [SourceDocument(place, kind, named if isinstance(named, str) else place)]


REASONS: Mapping[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
}
_KEPT = {
    "stop_reason": "stopReason",
    "stop_sequence": "stopSequence",
    "stop_details": "stopDetails",
    "container": "container",
    "id": "id",
}
_IMPLIED = {"text_delta": "text", "thinking_delta": "thinking"}


class Answer:
    """One answer under way. `failure` is set when it failed; nothing may be added then.

    `provider` goes into the finish, and `model` when the message does not name one. `new_id` gives ids for
    tool calls that come without one, or with one that is `taken`.
    """

    def __init__(
        self,
        *,
        provider: str | None,
        model: str | None,
        new_id: Callable[[], str],
        taken: Collection[str],
    ) -> None:
        self.failure: ProviderError | None = None
        self.begun = False
        self.stop: str | None = None
        self._provider = provider
        self._model = model
        self._new_id = new_id
        self._taken = set(taken)
        self._events: list[Event] = []
        self._open: dict[int, Block] = {}
        self._growing: Block | None = None  # the one that may hold pieces which have not left
        self._served: dict[str, Call] = {}  # Anthropic's own calls that wait for their result, by its ids
        self._calling = False
        self._citations = Citations()
        self._tally = Tally()
        self._kept: dict[str, Any] = {}

    def grow(self, index: int | None, delta: Delta) -> None:
        """Add a delta to its block; who says no index means the first."""
        index = index or 0
        block = self._open.get(index)
        if block is None:
            block = self._imply(index, delta)
            if block is None:
                return
        if block is not self._growing:
            self._flush()
            self._growing = block
        if delta.type == "text_delta" and type(block) is Text:  # as nearly all are
            block.pieces.append(delta.text or "")
        elif events := block.grow(delta):
            self._add(events)

    def add(self, frame: Frame) -> None:
        """Add any frame; one of an unknown type says nothing."""
        match frame.type:
            case "content_block_delta":
                if frame.delta is not None:
                    self.grow(frame.index, frame.delta)
            case "content_block_start":
                self._begin(frame.index, frame.content_block)
            case "content_block_stop":
                self._end(frame.index or 0)
            case "message_delta":
                self._tally.replace(frame.usage)
                self._close(frame.delta)
            case "message_start":
                self.start(frame.message)
            case _:
                pass

    def start(self, message: Any) -> None:
        """Add the message as its start has it: empty, or whole already."""
        self.begun = True
        if not isinstance(message, Mapping):
            return
        if isinstance(model := message.get("model"), str) and model:
            self._model = model
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else ()):
            self._begin(index, block)
            self._end(index)
        self._keep(message)
        self._tally.start(message.get("usage"), whole=bool(self.stop))

    def fail(self, error: Any) -> None:
        """Note the provider's error; the first stays."""
        if self.failure is None:
            self.failure = error if isinstance(error, ProviderError) else failure(error)

    def take(self) -> list[Event]:
        """The events since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """Close the answer: the message has stopped. It fails when nobody said why."""
        if self.stop is None:
            self.fail(unfinished("stopped without a stop reason", begun=self.begun))
            return
        for index in list(self._open):
            self._end(index)
        reason = REASONS.get(self.stop, "other")
        if self._calling and self.stop == "end_turn":
            reason = "tool-calls"
        self._add(
            [
                FinishStep(
                    reason,
                    self._tally.total(),
                    self._model,
                    self._provider,
                    provider_metadata={FAMILY: self._kept},
                )
            ]
        )

    def _begin(self, index: int | None, given: Any) -> None:
        if not isinstance(given, Mapping):
            return
        index = index or 0
        self.begun = True
        self._end(index)
        kind = given.get("type")
        if isinstance(kind, str) and kind.endswith("_tool_result") and self._result(given):
            return
        block = self._block(index, given)
        self._open[index] = block
        self._add(block.begin(given))
        self._growing = block
        if kind == "redacted_thinking":
            self._end(index)

    def _block(self, place: int, given: Mapping[str, Any]) -> Block:
        provider = self._provider
        match given.get("type"):
            case "text":
                return Text(f"text-{place}", provider=provider, tell=self._citations.tell)
            case "thinking" | "redacted_thinking":
                return Thinking(f"reasoning-{place}", provider=provider)
            case "tool_use":
                self._calling = True
                return Call(self._unique(given.get("id")), ours=True, provider=provider)
            case "server_tool_use" | "mcp_tool_use":
                call = Call(self._unique(given.get("id")), ours=False, provider=provider)
                self._served[str(given.get("id"))] = call
                return call
            case _:
                return Raw()

    def _imply(self, index: int, delta: Delta) -> Block | None:
        """The block that a delta without one belongs to: a new one, if its kind is plain."""
        kind = _IMPLIED.get(delta.type or "")
        if kind is None:
            return None
        self._begin(index, {"type": kind})
        return self._open.get(index)

    def _result(self, given: Mapping[str, Any]) -> bool:
        """Tell the result of one of Anthropic's own calls; False when its call is not of this answer."""
        call = self._served.pop(str(given.get("tool_use_id")), None)
        if call is None:
            return False
        for index, block in list(self._open.items()):
            if block is call:
                self._end(index)
        if call.broken:  # it has failed already, and takes no result
            return True
        metadata = sealed({"block": given}, self._provider)
        content = given.get("content")
        code = content.get("error_code") if isinstance(content, Mapping) else None
        if code or given.get("is_error"):
            text = str(code or "the call failed")
            self._add([ToolOutputError(call.id, text, provider_executed=True, provider_metadata=metadata)])
        else:
            self._add(
                [ToolOutputAvailable(call.id, content, provider_executed=True, provider_metadata=metadata)]
            )
        return True

    def _end(self, index: int) -> None:
        block = self._open.pop(index, None)
        if block is None:
            return
        if self._growing is not block:
            self._flush()
        self._growing = None
        self._events += block.end()

    def _close(self, delta: Delta | None) -> None:
        if delta is not None:
            self._keep(
                {
                    "stop_reason": delta.stop_reason,
                    "stop_sequence": delta.stop_sequence,
                    "stop_details": delta.stop_details,
                    "container": delta.container,
                }
            )

    def _keep(self, said: Mapping[str, Any]) -> None:
        """Keep what the finish tells; what is null says nothing."""
        self._kept |= {word: said[name] for name, word in _KEPT.items() if said.get(name) is not None}
        stop = said.get("stop_reason")
        if isinstance(stop, str) and stop:
            self.stop = stop

    def _unique(self, given: Any) -> str:
        id = given if isinstance(given, str) else ""
        while not id or id in self._taken:
            id = self._new_id()
        self._taken.add(id)
        return id

    def _add(self, events: list[Event]) -> None:
        """Put events in their place after what was said so far."""
        if events:
            self._flush()
            self._events += events

    def _flush(self) -> None:
        if self._growing is not None and self._growing.pieces:
            self._events += self._growing.flush()


def unfinished(what: str, *, begun: bool) -> ProviderError:
    """The error for an answer that did not come to its end."""
    return ProviderError(
        f"the provider's answer {what if begun else 'is empty'}",
        category="network",
        transient=True,
        hint="the connection was cut, or the server hides its errors; look into its log",
    )

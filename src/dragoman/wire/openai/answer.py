"""Answer: the chunks of one chat.completions answer become blocks, tool calls, sources and a finish.

Reasoning comes before text and text before calls when one chunk holds several. A refusal is a text block
with the provider metadata `{"openai": {"refusal": true}}`; the finish reason stays what the provider says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dragoman.errors import ProviderError
from dragoman.events import Event, FinishReason, FinishStep
from dragoman.wire.blocks import Blocks, Kind
from dragoman.wire.failures import failure
from dragoman.wire.openai.chunk import Choice, Chunk, Delta, Fragment, Function, function, is_plain, text
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.openai.reasoning import Reasoning, opaque
from dragoman.wire.openai.usage import counts, read_usage
from dragoman.wire.sources import Sources
from dragoman.wire.thinking import Cut, Thinking
from dragoman.wire.toolcalls import Piece, ToolCalls

REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "completed": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "tool_calls": "tool-calls",
    "tool_call": "tool-calls",
    "tool_use": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
    "safety": "content-filter",
    "refusal": "content-filter",
    "recitation": "content-filter",
    "prohibited_content": "content-filter",
    "sensitive": "content-filter",
    "guardrail_intervened": "content-filter",
    "error": "error",
    "abort": "error",
    "network_error": "error",
    "insufficient_system_resource": "error",
    "malformed_function_call": "error",
}
_RANKS: Mapping[FinishReason, int] = {
    "stop": 1,
    "tool-calls": 2,
    "length": 3,
    "content-filter": 3,
    "error": 4,
}


class Answer:
    """One answer under way. `failure` is set when it failed; nothing may be added then.

    `provider` goes into the finish, and `model` when no chunk names one. `new_id` gives ids for tool calls
    that come without one, or with one that is `taken`.
    """

    def __init__(
        self,
        quirks: Quirks,
        *,
        provider: str | None,
        model: str | None,
        new_id: Callable[[], str],
        taken: Collection[str],
    ) -> None:
        self.failure: ProviderError | None = None
        self.finish: FinishReason | None = None
        self.model = ""
        self.calling = False
        self._begun = False
        self._lenient = quirks.lenient_finish
        self._provider = provider
        self._reasoning = Reasoning(provider)
        self._blocks = Blocks(self._reasoning.take)
        self._thinking = Thinking(quirks.thinking)
        self._content: list[str] = []  # pieces that Thinking has not seen yet
        self._calls = ToolCalls(new_id=new_id, taken=taken)
        self._sources = Sources()
        self._usage: Any = None
        self._asked = model

    def grow(self, delta: Delta) -> None:
        """Add what a chunk without anything else brings."""
        if is_plain(delta):
            self._say(delta.content)
        else:
            self._say_all(delta)
        for fragment in delta.tool_calls or ():
            if not self._goes_on(fragment):
                self._call(self._piece(fragment))

    def add(self, chunk: Chunk) -> None:
        """Add any chunk."""
        self.model = self.model or chunk.model or ""
        self._count(chunk.usage)
        if chunk.search_results or chunk.citations or chunk.web_search:
            self._insert(self._sources.cite(chunk.search_results, chunk.citations, chunk.web_search))
        for choice in chunk.choices or ():
            if not choice.index:
                self._choose(choice)
        if isinstance(chunk.x_groq, Mapping):
            self._count(chunk.x_groq.get("usage"))
            self.fail(chunk.x_groq.get("error"))
        self.fail(chunk.error)

    def fail(self, error: Any) -> None:
        """Note the provider's error, if it is one; the first stays."""
        if error and self.failure is None:
            self.failure = error if isinstance(error, ProviderError) else failure(error)

    def take(self) -> list[Event]:
        """The events since the last time."""
        self._settle()
        if self.calling:
            self._blocks.add(self._calls.drain())
        return self._blocks.take()

    def end(self, *, done: bool) -> None:
        """Close the answer, after `[DONE]` or without; it fails when the provider gave no finish reason."""
        reason = self.finish
        if reason is None and done and self._lenient:
            reason = "stop"
        if reason is None:
            self.fail(_unfinished(done, self._begun))
        elif reason == "error":
            self.fail(failure({"message": "the provider broke the answer off: finish reason 'error'"}))
        if self.failure is not None or reason is None:
            return
        self._leave()
        self._blocks.add(self._calls.settle())
        if self._reasoning.kept and self._blocks.kind != "reasoning":
            self._blocks.open("reasoning")  # a signature that came late, in a block of its own
        self._blocks.close()
        calls = self._calls.finish(cut=reason == "length")
        self._blocks.add(calls)
        if calls and reason == "stop":
            reason = "tool-calls"
        model = self.model or self._asked
        usage = read_usage(self._usage, model=model or "")
        self._blocks.add([FinishStep(reason, usage, model, self._provider)])

    def _choose(self, choice: Choice) -> None:
        if choice.delta is not None:
            self.grow(choice.delta)
        if not self._begun and (choice.delta is None or choice.finish_reason):
            # a whole answer in one event, perhaps with an empty delta beside it, or the old completions API
            self.grow(_numbered(choice.message) if choice.message is not None else Delta(content=choice.text))
        if choice.finish_reason:
            reason = REASONS.get(choice.finish_reason.strip().lower().replace("-", "_"), "other")
            if self.finish is None or _RANKS.get(reason, 0) > _RANKS.get(self.finish, 0):
                self.finish = reason
        self.fail(choice.error)

    def _say(self, content: str | list[Any] | None) -> None:
        if not content:
            return
        if isinstance(content, list):
            for part in content:
                self._say_part(part)
            return
        if self.calling:
            self._blocks.add(self._calls.settle())
        self._begun = True
        self._content.append(content)

    def _say_all(self, delta: Delta) -> None:
        """Add all of the delta but its tool calls."""
        self._reason(delta)
        self._say(delta.content)
        if delta.refusal:
            self._write("refusal", delta.refusal)
        if delta.annotations or delta.images or delta.audio:
            self._attach(delta)
        if delta.function_call:
            self._call(self._piece(Fragment(function=function(delta.function_call)), index="function_call"))

    def _reason(self, delta: Delta) -> None:
        details = delta.reasoning_details or delta.thinking_blocks or delta.reasoning_opaque
        if details:
            self._settle()
        piece = self._reasoning.read(delta)
        if piece:
            self._write("reasoning", piece)
        elif details and self._reasoning.kept and not self._begun:
            self._begun = True
            self._blocks.open("reasoning")

    def _say_part(self, part: Any) -> None:
        """Add one part of a content that is a list (Mistral, Databricks)."""
        kind = part.get("type") if isinstance(part, Mapping) else "text"
        if kind in ("thinking", "reasoning"):
            self._write("reasoning", text(part.get("thinking") or part.get("reasoning")) or text(part) or "")
        elif kind == "refusal":
            self._write("refusal", text(part.get("refusal")) or "")
        elif kind == "image_url":
            self._insert(self._sources.show([part]))
        else:
            self._say(text(part) or "")

    def _attach(self, delta: Delta) -> None:
        self._insert([*self._sources.cite(delta.annotations), *self._sources.show(delta.images)])
        if isinstance(delta.audio, Mapping):
            self._say(text(delta.audio.get("transcript")) or "")

    def _goes_on(self, fragment: Fragment) -> bool:
        """Take a fragment that only brings more arguments, as most do; False for any other."""
        called = fragment.function
        return (
            called is not None
            and isinstance(called.arguments, str)
            and not called.name
            and not fragment.id
            and fragment.extra_content is None
            and not self._content
            and not self._thinking.held
            and self._blocks.kind is None
            and self._calls.extend(fragment.index, called.arguments)
        )

    def _call(self, piece: Piece) -> None:
        if not (piece.id or piece.name or piece.arguments or piece.metadata):
            return
        self._leave()
        self._blocks.close()
        self.calling = self._begun = True
        self._calls.add(piece)

    def _piece(self, fragment: Fragment, *, index: str | None = None) -> Piece:
        called, custom, extra = fragment.function or Function(), fragment.custom, fragment.extra_content
        raw = isinstance(custom, Mapping)
        if raw:
            called = Function(name=text(custom.get("name")), arguments=text(custom.get("input")))
        arguments = called.arguments or ""
        whole = isinstance(arguments, dict)
        return Piece(
            index=fragment.index if index is None else index,
            id=fragment.id or "",
            name=called.name or "",
            arguments=_dump(arguments) if isinstance(arguments, dict) else arguments,
            whole=whole,
            raw=raw,
            metadata=opaque({"extra_content": extra}, self._provider) if extra else None,
        )

    def _write(self, kind: Kind, piece: str) -> None:
        if not piece:
            return
        self._leave()
        if self.calling:
            self._blocks.add(self._calls.settle())
        self._begun = True
        self._blocks.write(kind, piece)

    def _insert(self, events: list[Event]) -> None:
        """Put events where the stream has them."""
        if not events:
            return
        self._settle()
        if self.calling:
            self._blocks.add(self._calls.drain())
        self._blocks.add(events)

    def _settle(self) -> None:
        """Cut the text so far into text and reasoning; the beginning of a tag is held back."""
        if self._content:
            pieces = self._thinking.feed("".join(self._content))
            self._content.clear()
            self._lay(pieces)

    def _leave(self) -> None:
        """The same with nothing held back: something else comes."""
        self._settle()
        if self._thinking.held:
            self._lay(self._thinking.close())

    def _lay(self, pieces: list[Cut]) -> None:
        for kind, piece in pieces:
            if kind == "border":
                self._blocks.close()
            else:
                self._blocks.write(kind, piece)

    def _count(self, usage: Any) -> None:
        """The last usage that counts anything is the true one, wherever it stands."""
        if usage and counts(usage):
            self._usage = usage


def _dump(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))


def _numbered(message: Delta) -> Delta:
    """The whole message, with numbers on its calls: each is one of its own."""
    for index, fragment in enumerate(message.tool_calls or ()):
        fragment.index = index if fragment.index is None else fragment.index
    return message


def _unfinished(done: bool, begun: bool) -> ProviderError:
    what = "ended without a finish reason" if begun else "is empty"
    return ProviderError(
        f"the provider's answer {what}{' although it said [DONE]' if done else ''}",
        category="network",
        transient=True,
        hint="the connection was cut, or the server hides its errors; look into its log",
    )

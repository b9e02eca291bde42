"""OpenAI-compatible streams, and ways to split and decode them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from dragoman import events as e
from dragoman.errors import ProviderError
from dragoman.wire.answer_decoder import AnswerDecoder
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.sse import encode_frame

RECORDINGS = Path(__file__).parent / "recordings" / "openai"
NAMES = sorted(path.stem for path in RECORDINGS.glob("*.sse"))


# recordings without a frame that an SDK cannot read
REGULAR = (
    "azure_filtered",
    "dashscope",
    "deepseek",
    "doubleword",
    "late_length",
    "openai_calls",
    "openai_custom_tool",
    "openai_cut_call",
    "openai_forced_call",
    "openai_function_call",
    "openai_refusal",
    "openai_text",
    "openai_two_choices",
    "openrouter_encrypted",
    "openrouter_image",
    "think_tags",
    "think_talk",
    "together",
    "xai",
)
HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}


def recording(name: str) -> bytes:
    """A stream that we wrote after the vendor's."""
    return (RECORDINGS / f"{name}.sse").read_bytes()


def sse(*chunks: Any, done: bool = True) -> bytes:
    """Chunks as a stream; bytes are frames already."""
    frames = [
        chunk if isinstance(chunk, bytes) else encode_frame(msgspec.json.encode(chunk)) for chunk in chunks
    ]
    return b"".join(frames) + (b"data: [DONE]\n\n" if done else b"")


def chunk(delta: Any = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk with one choice."""
    return {**HEAD, "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **more}


@dataclass
class Answer:
    """The output of a decoder: the events, and the failure if there was one."""

    events: list[e.Event] = field(default_factory=list)
    failure: ProviderError | None = None

    @property
    def story(self) -> list[tuple[Any, ...]]:
        return [*summarise(self.events), *([("failure", self.failure.category)] if self.failure else [])]

    @property
    def finish(self) -> e.FinishStep | None:
        last = self.events[-1] if self.events else None
        return last if isinstance(last, e.FinishStep) else None


def decode(reads: Iterable[bytes], quirks: Quirks | None = None) -> Answer:
    """Feed the reads one by one, as a provider does."""
    decoder = OpenAIDecoder(quirks)
    answer = Answer()
    try:
        for data in reads:
            answer.events += decoder.feed(data)
        answer.events += decoder.close()
        answer.failure = decoder.failure
    except ProviderError as failure:
        answer.failure = failure
    return answer


def document_failure(decoder: AnswerDecoder[Any], raw: bytes) -> ProviderError | None:
    """Decode one document; return why it failed, with or without events before that."""
    try:
        decoder.decode_document(raw)
    except ProviderError as failure:
        return failure
    return decoder.failure


def cut(raw: bytes, places: Sequence[int]) -> Iterator[bytes]:
    """The bytes split at these positions."""
    return (raw[start:end] for start, end in pairwise([0, *sorted(places), len(raw)]))


def cuts(raw: bytes, seed: int) -> list[int]:
    """Some positions to split at, chosen by the seed."""
    chance = random.Random(seed)
    return [chance.randrange(len(raw) + 1) for _ in range(chance.randrange(1, 40))]


def summarise(events: Sequence[e.Event]) -> list[tuple[Any, ...]]:
    """The content of the answer as a list, in order; checks the order of events."""
    teller = Teller()
    for event in events:
        teller.hear(event)
    assert not (teller.open and teller.ended), f"blocks are still open: {teller.open}"
    return [entry for entry in teller.story if entry]


class Teller:
    """Reads events one by one; raises AssertionError for one that is out of order."""

    def __init__(self) -> None:
        self.story: list[tuple[Any, ...]] = []
        self.open: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self.ended = False

    def hear(self, event: e.Event) -> None:
        assert not self.ended, f"{event} comes behind the finish"
        match event:
            case e.TextStart(id=id, provider_metadata=metadata):
                self.begin(id, "refusal" if metadata else "text")
            case e.ReasoningStart(id=id):
                self.begin(id, "reasoning")
            case e.TextDelta(id=id, delta=delta) | e.ReasoningDelta(id=id, delta=delta):
                assert delta
                self.grow(self.open[id], delta)
            case e.TextEnd(id=id):
                del self.open[id]
            case e.ReasoningEnd(id=id, provider_metadata=metadata):
                place = self.open.pop(id)
                self.story[place] += (metadata,) if metadata else ()
            case e.FinishStep():
                self.ended = True
                self.story.append(("finish", event.finish_reason, event.model))
            case _:
                self.hear_rest(event)

    def hear_rest(self, event: e.Event) -> None:
        match event:
            case e.ToolInputStart(tool_call_id=id, tool_name=name):
                assert id not in self.calls, f"two calls have the id {id!r}"
                self.calls[id] = len(self.story)
                self.story.append(("call", id, name, ""))
            case e.ToolInputDelta(tool_call_id=id, input_text_delta=delta):
                assert delta
                self.grow(self.calls[id], delta)
            case e.ToolInputAvailable(
                tool_call_id=id, tool_name=name, input=value, provider_metadata=metadata
            ):
                assert self.story[self.calls[id]][2] == name
                self.story[self.calls[id]] += (value, *([metadata] if metadata else []))
            case e.ToolInputError(tool_call_id=id, input=value, error_text=text):
                assert self.story[self.calls[id]][3] == value
                self.story[self.calls[id]] = ("bad call", id, value, text)
            case e.SourceUrl(url=url, title=title):
                self.story.append(("source", url, title))
            case e.File(url=url, media_type=kind):
                self.story.append(("file", url, kind))
            case _:
                raise AssertionError(f"a provider does not say {event}")

    def begin(self, id: str, kind: str) -> None:
        assert not self.open, f"{id} opens inside {self.open}"
        self.open[id] = len(self.story)
        self.story.append((kind, ""))

    def grow(self, place: int, delta: str) -> None:
        entry = self.story[place]
        self.story[place] = (*entry[:-1], entry[-1] + delta)

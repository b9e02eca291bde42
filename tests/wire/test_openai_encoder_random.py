"""Any answer of a provider, encoded for an OpenAI client and decoded again, is the same answer."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from dragoman import events as e
from dragoman.messages import ProviderMetadata
from dragoman.wire.openai.decoder import OpenAIDecoder
from dragoman.wire.openai.encoder import OpenAIStreamEncoder, encode_document
from dragoman.wire.openai.quirks import Quirks
from dragoman.wire.text_block_writer import REFUSAL_METADATA

from .openai_streams import cut, cuts, summarise

TEXTS = st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=3)
INPUTS = st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4) | st.none(), max_size=3)
COUNTS = st.none() | st.integers(1, 10**9)
PIECES = st.one_of(
    st.tuples(st.just("text"), TEXTS),
    st.tuples(st.just("refusal"), TEXTS),
    st.tuples(st.just("reasoning"), TEXTS, st.booleans()),
    st.tuples(st.just("call"), INPUTS, st.booleans()),
    st.tuples(st.just("bad call"), st.just('{"x":')),
    st.tuples(st.just("source"), st.just("title")),
)
# A decoder is told to take text as it is, for a model may well write `<think>`.
PLAIN = Quirks(think_tags="off")


def answer(pieces: list[Any], chance: random.Random) -> list[e.Event]:
    """The events of the fragments, block by block; a call's arguments come in fragments or at once."""
    events: list[e.Event] = []
    for number, (kind, value, *more) in enumerate(pieces):
        id = f"id-{number}"
        match kind:
            case "text" | "refusal":
                metadata = REFUSAL_METADATA if kind == "refusal" else None
                deltas = [e.TextDelta(id, fragment) for fragment in value]
                events += [e.TextStart(id, metadata), *deltas, e.TextEnd(id, metadata)]
            case "reasoning":
                seal: ProviderMetadata | None = (
                    {"anthropic": {"signature": f"sig-{number}"}} if more[0] else None
                )
                thoughts = [e.ReasoningDelta(id, fragment) for fragment in value]
                events += [e.ReasoningStart(id), *thoughts, e.ReasoningEnd(id, seal)]
            case "call":
                written = msgspec.json.encode(value).decode() if more[0] else ""
                events += fragments(id, written, chance)
                events.append(e.ToolInputAvailable(id, "f", value))
            case "bad call":
                events += fragments(id, value, chance)
                events.append(e.ToolInputError(id, "f", value, "bad"))
            case _:
                events.append(e.SourceUrl(id, f"https://{number}.example", value))
    return events


def fragments(id: str, written: str, chance: random.Random) -> list[e.Event]:
    places = sorted(chance.randrange(len(written) + 1) for _ in range(3))
    ends = zip([0, *places], [*places, len(written)], strict=True)
    fragments = [written[start:end] for start, end in ends]
    return [
        e.ToolInputStart(id, "f"),
        *(e.ToolInputDelta(id, fragment) for fragment in fragments if fragment),
    ]


def summary(events: list[e.Event]) -> dict[str, Any]:
    """What an OpenAI client can read from an answer: texts by kind, calls, sources, signatures."""
    texts = {"text": "", "refusal": "", "reasoning": ""}
    block = ""
    for event in events:
        match event:
            case e.TextStart():
                block = "refusal" if event.provider_metadata else "text"
            case e.ReasoningStart():
                block = "reasoning"
            case e.TextDelta() | e.ReasoningDelta():
                texts[block] += event.delta
            case _:
                pass
    ends = [event.provider_metadata for event in events if isinstance(event, e.ReasoningEnd)]
    calls = [event for event in events if isinstance(event, e.ToolInputAvailable | e.ToolInputError)]
    sources = [event for event in events if isinstance(event, e.SourceUrl)]
    [last] = [event for event in events if isinstance(event, e.FinishStep)]
    return {
        **texts,
        "signed": [signature for metadata in ends if metadata for signature in signatures(metadata)],
        "calls": [(call.tool_call_id, call.tool_name, call.input) for call in calls],
        "sources": [(source.url, source.title) for source in sources],
        "finish": (last.finish_reason, last.usage),
    }


def signatures(metadata: dict[str, dict[str, Any]]) -> list[str]:
    if "anthropic" in metadata:
        return [metadata["anthropic"]["signature"]]
    return [entry["signature"] for entry in metadata["openai"]["reasoning_details"]]


def finish(fragments: list[Any], counts: tuple[int | None, int | None, int | None]) -> e.FinishStep:
    prompt, completion, reasoning = counts
    usage = None
    if prompt is not None and completion is not None:
        usage = e.Usage(prompt, completion, prompt + completion, reasoning)
    calls = any("call" in kind for kind, *_ in fragments)
    return e.FinishStep("tool-calls" if calls else "stop", usage)


@given(st.lists(PIECES, max_size=6), st.tuples(COUNTS, COUNTS, COUNTS), st.integers(0, 10**6))
def test_any_encoded_answer_decodes_to_the_same_events(
    fragments: list[Any], counts: tuple[int | None, int | None, int | None], seed: int
) -> None:
    chance = random.Random(seed)
    events = [*answer(fragments, chance), finish(fragments, counts)]
    writer = OpenAIStreamEncoder(id="chatcmpl-1", model="m", created=5, include_usage=True)
    raw = b"".join(writer.encode(events[at : at + 3]) for at in range(0, len(events), 3)) + writer.end()
    decoder = OpenAIDecoder(PLAIN)
    heard = [
        event for fragment in cut(raw, cuts(raw, seed)) for event in decoder.feed(fragment)
    ] + decoder.close()
    assert summarise(heard)
    assert summary(heard) == summary(events)
    document = encode_document(events, id="chatcmpl-1", model="m", created=5)
    assert summary(OpenAIDecoder(PLAIN).decode_document(document)) == summary(events)


@given(st.lists(PIECES, max_size=6), st.integers(0, 10**6))
def test_openais_client_accumulates_any_stream_to_the_document(fragments: list[Any], seed: int) -> None:
    events = [*answer(fragments, random.Random(seed)), finish(fragments, (1, 2, 3))]
    writer = OpenAIStreamEncoder(id="chatcmpl-1", model="m", created=5, include_usage=True)
    raw = writer.encode(events) + writer.end()
    state: Any = ChatCompletionStreamState()
    for frame in raw.removesuffix(b"data: [DONE]\n\n").removesuffix(b"\n\n").split(b"\n\n"):
        state.handle_chunk(
            ChatCompletionChunk.construct(**msgspec.json.decode(frame.removeprefix(b"data: ")))
        )
    added = state.current_completion_snapshot.to_dict()
    one = msgspec.json.decode(encode_document(events, id="chatcmpl-1", model="m", created=5))
    assert clean(added) == clean(one)


def clean(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer without nulls and without the indexes that only a stream has."""
    [choice] = answer["choices"]
    message = {key: value for key, value in choice["message"].items() if value is not None}
    for call in message.get("tool_calls", ()):
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return {**message, "finish": choice["finish_reason"], "usage": answer["usage"]}

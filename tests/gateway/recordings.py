"""The recorded answers in neutral terms, as the SDKs and as the hub's decoders read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from anthropic.types import Message
from openai.types.chat import ChatCompletion

from dragoman import events as e
from tests.wire import anthropic_streams as anthropic
from tests.wire import ollama_streams as ollama
from tests.wire import openai_streams as openai
from tests.wire.openai_streams import HEAD, chunk, recording, sse

REASONS: Mapping[str | None, str | None] = {  # in the hub's words
    "eos": "stop",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "content_filter": "content-filter",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "max_tokens": "length",
    "tool_use": "tool-calls",
    "refusal": "content-filter",
    "other": "stop",
}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """An answer; arguments as values. `tokens`: in and out, None where nobody counted."""

    text: str
    reasoning: str
    calls: Sequence[tuple[str, str, Any]]
    finish: str | None
    tokens: tuple[int | None, int | None]


def value(arguments: Any) -> Any:
    """Arguments as a value; what cannot be read stays as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments or "{}") or {}
    except msgspec.DecodeError:
        return arguments


def said_by_openai(answer: ChatCompletion) -> Said:
    """What a chat.completion says."""
    message = answer.choices[0].message
    extra = message.model_extra or {}
    calls: list[Any] = list(message.tool_calls or ())
    reason = answer.choices[0].finish_reason
    usage = answer.usage
    return Said(
        text=(message.content or "") + (message.refusal or ""),
        reasoning=extra.get("reasoning_content") or extra.get("reasoning") or "",
        calls=[(call.id, call.function.name, value(call.function.arguments)) for call in calls],
        finish="tool-calls" if calls and reason == "stop" else REASONS.get(reason, reason),
        tokens=(usage.prompt_tokens, usage.completion_tokens) if usage else (None, None),
    )


def said_by_anthropic(answer: Message) -> Said:
    """What a Message says. Its input is the whole prompt, what the cache held of it too."""
    content: list[Any] = list(answer.content)
    usage = answer.usage
    prompt = (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens)
    return Said(
        text="".join(block.text for block in content if block.type == "text"),
        reasoning="".join(block.thinking for block in content if block.type == "thinking"),
        calls=[(block.id, block.name, block.input) for block in content if block.type == "tool_use"],
        finish=REASONS.get(answer.stop_reason, answer.stop_reason),
        tokens=(sum(count or 0 for count in prompt), usage.output_tokens),
    )


def said_by_events(events: Iterable[e.Event]) -> Said:
    """What a provider's events say."""
    text, reasoning, calls, finish = "", "", [], e.FinishStep()
    for event in events:
        match event:
            case e.TextDelta(delta=delta):
                text += delta
            case e.ReasoningDelta(delta=delta):
                reasoning += delta
            case e.ToolInputAvailable() | e.ToolInputError() if not event.provider_executed:
                calls.append((event.tool_call_id, event.tool_name, value(event.input)))
            case e.FinishStep():
                finish = event
            case _:
                pass
    usage = finish.usage or e.Usage()
    return Said(
        text=text,
        reasoning=reasoning,
        calls=calls,
        finish=REASONS.get(finish.finish_reason, finish.finish_reason),
        tokens=(usage.input_tokens, usage.output_tokens),
    )


def collect(answer: openai.Answer) -> Said | str:
    """What a decoder made of a recording, or how it failed."""
    return answer.failure.category if answer.failure else said_by_events(answer.events)


def known_names(value: Any, raw: bytes) -> Any:
    """Chunks with a sign for each id and time that the hub had to make up."""
    if isinstance(value, Mapping):
        made_up = value.get("created") is not None and str(value["created"]).encode() not in raw
        fields = {name: known_names(field, raw) for name, field in value.items()}
        return {**fields, "created": 0} if made_up else fields
    if isinstance(value, list):
        return [known_names(item, raw) for item in value]
    made_up = isinstance(value, str) and value.startswith(("call_", "chatcmpl-"))
    return "made up" if made_up and value.encode() not in raw else value


def known_ids(reply: Said, raw: bytes) -> Said:
    """The answer with a sign for each id that the hub had to make up."""
    calls = [(id if f'"{id}"'.encode() in raw else "made up", *rest) for id, *rest in reply.calls]
    return msgspec.structs.replace(reply, calls=calls)


OPENAI: dict[str, bytes] = {
    **{name: recording(name) for name in openai.NAMES},
    "logprobs": sse(
        chunk({"role": "assistant", "content": ""}),
        {
            **HEAD,
            "system_fingerprint": "fp_1",
            "service_tier": "default",
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": '{"n":1}'},
                    "logprobs": {
                        "content": [{"token": "{", "logprob": -0.5, "bytes": [123], "top_logprobs": []}],
                        "refusal": None,
                    },
                    "finish_reason": None,
                }
            ],
        },
        chunk(finish="stop"),
        {**HEAD, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}},
    ),
}
ANTHROPIC: dict[str, bytes] = {**anthropic.STREAMS, "unknown": anthropic.UNKNOWN}
OLLAMA: dict[str, bytes] = ollama.STREAMS

# Recordings of answers that are none; through a door of the same family: the status, and words of the error.
OPENAI_BROKEN: dict[str, tuple[int | None, str]] = {
    "detail_error": (400, "Field required"),
    "google_error": (503, "overloaded"),
    "gpustack_error": (None, "failed to decode"),
    "groq_error": (None, "Tool call validation failed"),
    "groq_stopped": (None, "over capacity"),
    "openai_error": (None, "The server had an error"),
    "openrouter_error": (None, "upstream hung up"),
    "quota_error": (429, "exceeded your current quota"),
    "swallowed": (None, "without a finish reason"),
    "vllm_error": (None, "EngineCore encountered an issue"),
}
START, HELLO = anthropic.start(), anthropic.text(0, "Hi")
ANTHROPIC_BROKEN: dict[str, tuple[bytes, int | None, str]] = {
    "overloaded": (anthropic.sse(START, *HELLO, anthropic.OVERLOADED), 200, "Overloaded"),
    "overloaded at once": (anthropic.sse(anthropic.OVERLOADED), 529, "Overloaded"),
    "cut": (anthropic.sse(START, *HELLO), 200, "ended without"),
    "no stop reason": (anthropic.sse(START, *HELLO, anthropic.STOP), 200, "without a"),
    "empty": (b"", 502, "is empty"),
    "garbage": (anthropic.sse(START, b"data: {nonsense\n\n"), 200, "invalid JSON"),
}
OLLAMA_BROKEN = {
    "error": "unexpectedly stopped",
    "silent end": "before it was done",
    "garbage": "invalid JSON",
}


def decoded(family: str, raw: bytes) -> Said | str:
    """What the hub's own decoder makes of a recording."""
    match family:
        case "oai":
            return collect(openai.decode([raw]))
        case "ant":
            return collect(anthropic.decode([raw]))
        case _:
            return collect(ollama.decode([raw]))

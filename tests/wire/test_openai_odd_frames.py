"""Odd frames of vendors: OpenAI's accumulator reads the relayed answer; regular frames keep their bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from dragoman.wire.openai.tap import OpenAITap
from dragoman.wire.sse import encode_frame

from .openai_streams import HEAD, chunk, sse
from .test_openai_tap import frames

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
BEFORE = [chunk({"role": "assistant", "content": "He"}), chunk({"content": "l"})]
AFTER = [chunk({"content": "o"}), chunk(finish="stop"), {**HEAD, "choices": [], "usage": USAGE}]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


def choice(**fields: Any) -> dict[str, Any]:
    return {**HEAD, "choices": [{"index": 0, "delta": {"content": "l"}, "finish_reason": None, **fields}]}


def delta(**fields: Any) -> dict[str, Any]:
    return choice(delta={"content": "l", **fields})


CALL_WITHOUT_ARGUMENTS: dict[str, list[Any]] = {  # chunks of a stream that calls f without arguments
    "null": [{"name": "f", "arguments": None}],
    "absent": [{"name": "f"}],
    "null twice": [{"name": "f", "arguments": None}, {"arguments": None}],
    "empty": [{"name": "f", "arguments": ""}],
    "empty, later": [{"name": "f"}, {"arguments": ""}],
}


ODD: dict[str, Any] = {  # each says "l"
    "role": delta(role="assistant"),
    "role with spaces": json.dumps(delta(role="assistant")).encode(),
    "role at the end": json.dumps(choice(delta={"content": "l", "role": "assistant"})).encode(),
    "role in a text": choice(delta={"role": "assistant", "content": "l", "reasoning": '"role":"assistant",'}),
    "role null": delta(role=None),
    "content list": choice(delta={"content": [{"type": "text", "text": "l"}]}),
    "content object": choice(delta={"content": {"type": "text", "text": "l"}}),
    "content with an image": choice(delta={"content": [{"type": "text", "text": "l"}, IMAGE]}),
    "logprobs list": choice(logprobs=[]),
    "logprobs list of objects": choice(logprobs=[{"token": "l"}]),
    "logprobs text": choice(logprobs="l"),
    "index text": choice(index="0"),
    "index of 5,000 digits": choice(index="9" * 5_000),
    "index float": json.dumps(choice(index=0.0)).encode(),
    "index boolean": choice(index=False),
    "index null": choice(index=None),
    "index negative": choice(index=-1),
    "finish empty": choice(finish_reason=""),
    "finish boolean": choice(finish_reason=False),
    "created float": {**choice(), "created": 1.5},
    "created text": {**choice(), "created": "1"},
    "id null": {**choice(), "id": None},
    "id number": {**choice(), "id": 7},
    "model null": {**choice(), "model": None},
    "object other": {**choice(), "object": "chat.completion"},
    "usage empty": {**choice(), "usage": {}},
    "usage text": {**choice(), "usage": "none"},
    "calls null": delta(tool_calls=None),
    "calls empty": delta(tool_calls=[]),
    "calls object": delta(tool_calls={}),
    "calls of nothing": delta(tool_calls=[None]),
    "function call empty": delta(function_call={}),
    "function call of nulls": delta(function_call={"name": None, "arguments": None}),
    "function call of empty texts": delta(function_call={"name": "", "arguments": ""}),
    "choices object": {**choice(), "choices": choice()["choices"][0]},
    "message beside the delta": choice(message={"role": "assistant", "content": "all of it"}),
    "logprobs of an object": choice(logprobs={"content": {}}),
    "logprobs of a text": choice(logprobs={"content": "l", "refusal": 1}),
    "unknown list": delta(sources=[{"url": "a"}]),
    "unknown list of texts": delta(sources=["a"]),
    "unknown object": delta(vendor={"score": 1}),
    "refusal list": delta(refusal=["a"]),
    "reasoning list": delta(reasoning_content=["a"]),
    "details object": delta(reasoning_details={"type": "x"}),
    "error false": {**choice(), "error": False},
    "a list": [choice()],
    "not a number": json.dumps(choice(score=float("nan"))).encode(),
    "over several lines": b"data: "
    + json.dumps(choice(), indent=1).replace("\n", "\ndata: ").encode()
    + b"\n\n",
}


ROLES: dict[str, dict[str, Any]] = {  # in the first chunk
    "none": {},
    "null": {"role": None},
    "empty": {"role": ""},
    "another": {"role": "model"},
    "the user's": {"role": "user"},
    "number": {"role": 1},
    "object": {"role": {"name": "assistant"}},
}
HEADER: dict[str, Any] = {
    "index": 0,
    "id": "c",
    "type": "function",
    "function": {"name": "f", "arguments": ""},
}
ARGUMENTS: dict[str, Any] = {"index": 0, "function": {"arguments": '{"a":1}'}}


def call(**fields: Any) -> dict[str, Any]:
    return {**HEADER, "function": {"name": "f", "arguments": '{"a":1}'}, **fields}


def call_without(field: str) -> dict[str, Any]:
    return {name: value for name, value in call().items() if name != field}


def parts(*fragments: Any) -> list[Any]:
    return [[fragment] for fragment in fragments]


CALLS: dict[str, list[Any]] = {  # the lists of calls in the chunks of a stream that calls f(a=1)
    **{f"without {name}": [[call_without(name)]] for name in ("index", "id", "type")},
    **{f"{name} null": [[call(**{name: None})]] for name in ("index", "id", "type")},
    "index text": [[call(index="0")]],
    "index of another": [[call(index=3)]],
    "type empty": [[call(type="")]],
    "type in each": parts(HEADER, {**ARGUMENTS, "type": "function"}),
    "id number": [[call(id=7)]],
    "without index in parts": parts(
        {**HEADER, "index": None}, {"function": {"arguments": '{"a":'}}, {"function": {"arguments": "1}"}}
    ),
    "nulls in later parts": parts(
        HEADER, {**ARGUMENTS, "id": None, "type": None, "function": {**ARGUMENTS["function"], "name": None}}
    ),
    "empty texts in later parts": parts(
        HEADER, {**ARGUMENTS, "id": "", "type": "", "function": {**ARGUMENTS["function"], "name": ""}}
    ),
    "header in each": parts(
        {**HEADER, "function": {"name": "f", "arguments": '{"a":'}},
        {**HEADER, "function": {"name": "f", "arguments": "1}"}},
    ),
    "name in the second": parts(
        {**HEADER, "function": {"name": "", "arguments": ""}},
        {**ARGUMENTS, "function": {"name": "f", "arguments": '{"a":1}'}},
    ),
    "arguments object": [[call(function={"name": "f", "arguments": {"a": 1}})]],
    "arguments null": parts({**HEADER, "function": {"name": "f", "arguments": None}}, ARGUMENTS),
    "function null at the end": parts(call(), {"index": 0, "function": None}),
    "nothing at the end": parts(call(), {"index": 0}),
    "arguments twice": parts(HEADER, ARGUMENTS, ARGUMENTS),  # vLLM's xlam parser flushes them again
    "arguments in parts, then whole": parts(
        HEADER,
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        ARGUMENTS,
    ),
    "object": [call()],
    "null beside it": [[None, call()]],
}


def stream_of_calls(name: str) -> bytes:
    chunks = [choice(delta={"tool_calls": calls}) for calls in CALLS[name]]
    begin = choice(delta={"role": "assistant", "content": None})
    return sse(begin, *chunks, chunk(finish="tool_calls"), AFTER[-1])


def stream_of_role(name: str) -> bytes:
    return sse(choice(delta={**ROLES[name], "content": "Hel"}), *AFTER[-3:])


def accumulate(payloads: list[bytes]) -> Any:
    """What the `.stream()` helper of OpenAI's library makes of chunks."""
    state: Any = ChatCompletionStreamState()
    for payload in payloads:
        state.handle_chunk(construct_type(value=json.loads(payload), type_=ChatCompletionChunk))
    return state.current_completion_snapshot


def written(odd: Any) -> bytes:
    if isinstance(odd, bytes):
        return odd if odd.startswith(b"data:") else encode_frame(odd)
    return encode_frame(msgspec.json.encode(odd))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("name", ODD)
def test_the_accumulator_reads_the_answer_around_odd_frames(name: str, times: int) -> None:
    tap = OpenAITap()
    before, after = sse(*BEFORE, done=False), sse(*AFTER)
    relayed = tap.feed(before + written(ODD[name]) * times + after) + tap.close()
    payloads = [payload for _, payload in frames(relayed) if payload != b"[DONE]"]
    for payload in payloads:
        msgspec.json.decode(payload)  # valid JSON, as JSON.parse wants it
    snapshot = accumulate(payloads)
    (answer,) = snapshot.choices
    assert (answer.message.role, answer.message.content) == ("assistant", "Hel" + "l" * times + "o")
    assert (answer.finish_reason, snapshot.usage.total_tokens) == ("stop", 3)
    assert relayed.startswith(before)
    assert payloads[-3:] == [payload for _, payload in frames(after)[:-1]]
    images = [image["image_url"] for image in getattr(answer.message, "images", ())]
    assert images == ([IMAGE["image_url"]] * times if name == "content with an image" else [])


def relayed(raw: bytes) -> bytes:
    """What a relay passes on: the same at once and byte by byte."""
    whole, single = OpenAITap(), OpenAITap()
    output = whole.feed(raw) + whole.close()
    assert output == b"".join(single.feed(raw[at : at + 1]) for at in range(len(raw))) + single.close()
    return output


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_the_accumulator_reads_the_call_in_odd_fragments(name: str) -> None:
    raw = relayed(stream_of_calls(name))
    snapshot = accumulate([payload for _, payload in frames(raw) if payload != b"[DONE]"])
    (answer,) = snapshot.choices
    (made,) = answer.message.tool_calls
    assert (made.type, made.function.name, json.loads(made.function.arguments)) == ("function", "f", {"a": 1})
    assert isinstance(made.id, str)
    assert (answer.message.role, answer.finish_reason) == ("assistant", "tool_calls")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("in_last", [False, True])
@pytest.mark.parametrize("name", CALL_WITHOUT_ARGUMENTS)
def test_a_call_whose_arguments_never_come_has_a_text_for_them(name: str, in_last: bool) -> None:
    first, *rest = CALL_WITHOUT_ARGUMENTS[name]
    fragments = [{**HEADER, "function": first}, *({"index": 0, "function": each} for each in rest)]
    chunks = [choice(delta={"tool_calls": [fragment]}) for fragment in fragments]
    end = chunk(finish="tool_calls")
    if in_last:
        chunks[-1]["choices"][0]["finish_reason"], end = "tool_calls", AFTER[-1]
    raw = sse(choice(delta={"role": "assistant", "content": None}), *chunks, end)
    passed = relayed(raw)
    snapshot = accumulate([payload for _, payload in frames(passed) if payload != b"[DONE]"])
    (made,) = snapshot.choices[0].message.tool_calls
    assert (made.function.name, json.loads(made.function.arguments or "{}")) == ("f", {})
    assert isinstance(made.function.arguments, str)
    assert (passed == raw) == name.startswith("empty")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ROLES)
def test_an_answer_has_its_role_whatever_the_server_calls_it(name: str) -> None:
    raw = relayed(stream_of_role(name))
    snapshot = accumulate([payload for _, payload in frames(raw) if payload != b"[DONE]"])
    (answer,) = snapshot.choices
    assert (answer.message.role, answer.message.content) == ("assistant", "Helo")


def test_a_function_call_of_the_old_form_keeps_its_bytes() -> None:
    calls = [{"name": "f", "arguments": ""}, {"arguments": '{"a":'}, {"arguments": "1}"}]
    begin = choice(delta={"role": "assistant", "content": None})
    raw = sse(
        begin, *(choice(delta={"function_call": each}) for each in calls), chunk(finish="function_call")
    )
    assert relayed(raw) == raw


@pytest.mark.parametrize("late", [False, True])
def test_a_role_is_passed_on_once_for_each_choice(late: bool) -> None:
    def say(index: int, **fields: Any) -> dict[str, Any]:
        return {
            **HEAD,
            "choices": [{"index": index, "delta": {"content": "x", **fields}, "finish_reason": None}],
        }

    early = [say(0)] if late else []
    talk = [*early, *(say(index, role="assistant") for index in (0, 1, 0, 1, 0))]
    tap = OpenAITap()
    passed = frames(tap.feed(sse(*talk, done=False)))
    roles = [b'"role"' in payload for _, payload in passed]
    assert roles == [*([False] if late else []), True, True, False, False, False]
    assert passed[: len(early) + 2] == frames(sse(*talk, done=False))[: len(early) + 2]

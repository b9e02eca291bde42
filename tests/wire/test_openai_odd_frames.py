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

"""Anthropic requests: complete bodies for whole conversations."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.errors import BadRequest
from dragoman.messages import (
    Approval,
    DataPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    Role,
    SourceUrlPart,
    StepStartPart,
    TextPart,
    ToolPart,
)
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.wire.anthropic.request import encode_request
from dragoman.wire.multimodal_outputs import write_multimodal_output

from .anthropic_requests import (
    ASKED,
    HI,
    MARK,
    MARKED,
    PNG,
    answered,
    assistant,
    encode,
    history,
    obeys,
    system,
    tool,
    use,
    user,
    words,
)
from .anthropic_streams import STREAMS, UNKNOWN, decode, folded


def test_a_small_request_encodes_to_this_body() -> None:
    request = ModelRequest(model="claude-x", messages=[HI], instructions="Be kind.")
    assert encode_request(request, stream=False, max_tokens=99) == (
        b'{"model":"claude-x","max_tokens":99,"stream":false,"system":[{"type":"text","text":"Be kind."}],'
        b'"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}'
    )


def test_a_large_request_encodes_to_this_body() -> None:
    search = Tool("search", "Finds.", {"properties": {"q": {"type": "string"}}}, strict=True, metadata=MARKED)
    body = encode(
        system(TextPart("One."), TextPart("Two.", provider_metadata=MARKED)),
        user(TextPart("Look:"), FilePart("image/png", PNG, provider_metadata=MARKED)),
        assistant(
            ReasoningPart("Hm.", "done", {"anthropic": {"signature": "c2ln", "provider": "up"}}),
            TextPart("I'll ask."),
            tool(input={"q": "parrot"}, output={"n": 2}, result_provider_metadata=MARKED),
        ),
        user(TextPart("And?")),
        model="claude-sonnet-4-5",
        instructions="Be kind.",
        tools=[search],
        tool_choice=NamedToolChoice("search"),
        options={
            "max_completion_tokens": 500,
            "temperature": 1.5,
            "stop": ["END", " \n"],
            "parallel_tool_calls": False,
            "user": "u-1",
            "service_tier": "default",
            "top_k": 5,
        },
    )
    assert body == {
        "model": "claude-sonnet-4-5",
        "max_tokens": 500,
        "stream": True,
        "system": [words("Be kind."), words("One."), words("Two.", cache_control=MARK)],
        "tools": [
            {
                "name": "search",
                "description": "Finds.",
                "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}},
                "strict": True,
                "cache_control": MARK,
            }
        ],
        "tool_choice": {"type": "tool", "name": "search", "disable_parallel_tool_use": True},
        "messages": [
            {
                "role": "user",
                "content": [
                    words("Look:"),
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                        "cache_control": MARK,
                    },
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                    words("I'll ask."),
                    use(value={"q": "parrot"}),
                ],
            },
            {"role": "user", "content": [answered('{"n":2}', cache_control=MARK), words("And?")]},
        ],
        "metadata": {"user_id": "u-1"},
        "service_tier": "standard_only",
        "stop_sequences": ["END"],
        "temperature": 1,
        "top_k": 5,
    }


def test_a_system_message_inside_the_conversation_keeps_its_position() -> None:
    assert history(HI, system(TextPart("Be brief.")), user(TextPart("So?"))) == [
        {
            "role": "user",
            "content": [
                words("Hi"),
                words("<system-reminder>\nBe brief.\n</system-reminder>"),
                words("So?"),
            ],
        }
    ]


def test_each_model_call_is_an_assistant_message_followed_by_its_results_in_call_order() -> None:
    written = history(
        HI,
        assistant(
            StepStartPart(),
            TextPart("First."),
            tool("toolu_a", output="A"),
            tool("toolu_b", "output-error", error_text="broken"),
            StepStartPart(),
            tool("toolu_c", "input-available"),
            StepStartPart(),
            TextPart("Done."),
        ),
        user(TextPart("Thanks.")),
    )
    assert written == [
        ASKED,
        {"role": "assistant", "content": [words("First."), use("toolu_a"), use("toolu_b")]},
        {
            "role": "user",
            "content": [answered("A", "toolu_a"), answered("broken", "toolu_b", is_error=True)],
        },
        {"role": "assistant", "content": [use("toolu_c")]},
        {"role": "user", "content": [answered("not run: interrupted", "toolu_c", is_error=True)]},
        {"role": "assistant", "content": [words("Done.")]},
        {"role": "user", "content": [words("Thanks.")]},
    ]


@pytest.mark.parametrize(
    ("part", "result"),
    [
        (tool(output=""), {"type": "tool_result", "tool_use_id": "toolu_a"}),
        (tool(output=None), answered("null")),
        (tool(output=MappingProxyType({"é": 1})), answered('{"é":1}')),
        (
            tool(state="output-denied", approval=Approval("x", False, "no")),
            answered("denied: no", is_error=True),
        ),
        (tool(state="approval-requested"), answered("not run: nobody has approved it", is_error=True)),
        (
            tool(
                output=write_multimodal_output([TextPart("Seen:"), TextPart(" "), FilePart("image/png", PNG)])
            ),
            answered(
                [
                    words("Seen:"),
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                    },
                ]
            ),
        ),
        (
            tool(
                output=write_multimodal_output(
                    [
                        FilePart("audio/wav", "data:audio/wav;base64,AA=="),
                        FilePart("text/csv", "https://example.org/a.csv"),
                    ]
                )
            ),
            answered(
                [
                    words("[a file of the type audio/wav, 1 byte]"),
                    words("[a file of the type text/csv at https://example.org/a.csv]"),
                ]
            ),
        ),
    ],
)
def test_results_are_written_for_calls_in_every_state(part: ToolPart, result: dict[str, Any]) -> None:
    assert history(HI, assistant(part))[2] == {"role": "user", "content": [result]}


def test_a_call_with_incomplete_arguments_is_omitted() -> None:
    assert history(HI, assistant(TextPart("I'll"), tool(state="input-streaming")), user(TextPart("?"))) == [
        ASKED,
        {"role": "assistant", "content": [words("I'll")]},
        {"role": "user", "content": [words("?")]},
    ]


@pytest.mark.parametrize("value", ['{"a', None, [1]])
def test_arguments_that_are_not_an_object_become_an_empty_object(value: Any) -> None:
    part = tool(state="output-error", input=value, error_text="invalid JSON")
    assert history(HI, assistant(part))[1]["content"] == [use()]


def test_ids_are_rewritten_consistently_and_are_unique() -> None:
    parts: list[Part] = [
        tool("functions.f:0", output="1"),
        StepStartPart(),
        tool("functions.f:0", output="2"),
        tool("ok"),
    ]
    written = history(HI, assistant(*parts))
    ids = [block["id"] for message in written for block in message["content"] if block["type"] == "tool_use"]
    assert ids == ["toolu_d6bdd4de328a22edd610f954", "toolu_d6bdd4de328a22edd610f954-2", "ok"]


def test_empty_texts_are_omitted_and_a_final_assistant_text_is_stripped() -> None:
    assert history(user(TextPart("")), HI, assistant(TextPart(" \n")), assistant(TextPart("I am \n"))) == [
        ASKED,
        {"role": "assistant", "content": [words("I am")]},
    ]


def test_thinking_is_sent_back_only_to_its_provider_and_only_if_signed() -> None:
    parts = [
        ReasoningPart("Mine.", "done", {"anthropic": {"signature": "s1", "provider": "up"}}),
        ReasoningPart("", "done", {"anthropic": {"redactedData": "r1"}}),
        ReasoningPart("", "done", {"anthropic": {"signature": "s2"}}),
        ReasoningPart("Another's.", "done", {"anthropic": {"signature": "s3", "provider": "down"}}),
        ReasoningPart("Unsigned."),
        ReasoningPart("Opaque.", "done", {"openai": {"reasoning_details": []}}),
    ]
    assert history(HI, assistant(*parts, TextPart("So.")))[1]["content"] == [
        {"type": "thinking", "thinking": "Mine.", "signature": "s1"},
        {"type": "redacted_thinking", "data": "r1"},
        {"type": "thinking", "thinking": "", "signature": "s2"},
        words("So."),
    ]


def test_blocks_from_the_api_are_sent_back_unchanged() -> None:
    def replayed(raw: bytes) -> Any:
        answer = decode([raw], provider="up")
        return history(HI, folded(answer.events), user(TextPart("Go on.")))[1]["content"]

    search = replayed(STREAMS["search"])
    assert [block["type"] for block in search] == [
        "server_tool_use",
        "web_search_tool_result",
        "text",
        "text",
    ]
    assert search[0]["input"] == {"query": "parrots"}
    assert search[1]["content"][0]["encrypted_content"] == "EqgfCioIARgBIiQ3YTAwMjY1Mi1mZjM5"
    assert search[2]["citations"][0]["encrypted_index"] == "Eo8BCioIAhgBIiQ="
    assert [block["type"] for block in replayed(UNKNOWN)] == ["fallback", "compaction", "text"]
    assert replayed(STREAMS["programmatic_calls"])[0]["caller"]["tool_id"] == "srvtoolu_9"
    thinking = replayed(STREAMS["thinking"])
    assert thinking[0]["signature"] == "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk="
    assert thinking[1] == {
        "type": "redacted_thinking",
        "data": "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyI=",
    }


def test_server_tool_blocks_are_not_sent_to_another_provider() -> None:
    answer = decode([STREAMS["search"]], provider="down")
    assert history(HI, folded(answer.events))[1]["content"] == [words("There were two."), words("They talk.")]


def test_a_request_without_a_message_is_rejected() -> None:
    with pytest.raises(BadRequest) as refused:
        encode(system(TextPart("Be kind.")))
    assert refused.value.field == "messages"


TEXTS = st.sampled_from(["", " ", "a", "b \n", "ü🦜"])
PARTS: st.SearchStrategy[Any] = st.one_of(
    st.builds(TextPart, TEXTS),
    st.builds(
        ReasoningPart,
        TEXTS,
        st.just("done"),
        st.sampled_from([None, {"anthropic": {"signature": "s"}}, {"anthropic": {"redactedData": "r"}}]),
    ),
    st.just(StepStartPart()),
    st.just(FilePart("image/png", PNG)),
    st.just(SourceUrlPart("s", "https://example.org")),
    st.just(DataPart("data-app", {})),
    st.builds(
        tool,
        st.sampled_from(["a", "b", "x.y", ""]),
        st.sampled_from(["input-streaming", "input-available", "output-available", "output-error"]),
        output=TEXTS,
    ),
)
ROLES: list[Role] = ["system", "user", "assistant"]


@given(
    st.lists(st.builds(Message, st.just("m"), st.sampled_from(ROLES), st.lists(PARTS, max_size=6).map(tuple)))
)
def test_every_history_is_valid_and_the_same_request_gives_the_same_bytes(
    messages: list[Message],
) -> None:
    request = ModelRequest(model="m", messages=[HI, *messages], options={"stop": "x", "temperature": 0})
    raw = encode_request(request)
    again = msgspec.json.decode(msgspec.json.encode([message.parts for message in messages]))
    assert encode_request(request) == raw
    assert again is not None
    obeys(msgspec.json.decode(raw)["messages"])

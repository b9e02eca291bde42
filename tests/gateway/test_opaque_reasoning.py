"""Opaque reasoning of OpenAI-compatible providers, through the Anthropic endpoint and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.gateway.sdk_clients import HI, Pair, completion, final, message
from tests.gateway.upstream import LINES, Answer, Stage, document
from tests.wire.anthropic_streams import STREAMS
from tests.wire.ollama_streams import STREAMS as OLLAMA
from tests.wire.openai_streams import chunk, sse
from tests.wire.responses_streams import STREAMS as RESPONSES

SIGNATURE = 'EqQB/+==".é\\'  # whatever it has in it
CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
FUNCTION = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}
TEXT = {
    "type": "reasoning.text",
    "text": "Let me see.",
    "signature": SIGNATURE,
    "format": "anthropic-claude-v1",
    "index": 0,
}
ENCRYPTED = {
    "type": "reasoning.encrypted",
    "data": "gAAAA" * 40,
    "format": "openai-responses-v1",
    "id": "rs_1",
    "index": 1,
}
SUMMARY = {"type": "reasoning.summary", "summary": "I look.", "format": "openai-responses-v1", "index": 0}
SUMMARY_TEXT = {"type": "summary_text", "text": "", "signature": ""}
ENCRYPTED_TEXT = {"type": "summary_encrypted_text", "data": "gAAAA" * 40}
GOOGLE = {"google": {"thought_signature": SIGNATURE}}
# the deltas of an answer, and what of them the provider must get back
FORMS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "signed text": ([{"reasoning_details": [TEXT]}], {"reasoning_details": [TEXT]}),
    "signed text in pieces": (
        [
            {"reasoning": "Let me ", "reasoning_details": [{**TEXT, "text": "Let me ", "signature": None}]},
            {"reasoning": "see.", "reasoning_details": [{**TEXT, "text": "see."}]},
        ],
        {"reasoning_details": [TEXT]},
    ),
    "encrypted only": ([{"reasoning_details": [ENCRYPTED]}], {"reasoning_details": [ENCRYPTED]}),
    "summary and encrypted": (
        [{"reasoning_details": [SUMMARY]}, {"reasoning_details": [ENCRYPTED]}],
        {"reasoning_details": [SUMMARY, ENCRYPTED]},
    ),
    "two texts of one block": (
        [{"reasoning_details": [TEXT, {**TEXT, "index": 2, "text": "Once more.", "signature": "s2"}]}],
        {"reasoning_details": [TEXT, {**TEXT, "index": 2, "text": "Once more.", "signature": "s2"}]},
    ),
    "thinking blocks": (
        [{"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}]}],
        {"thinking_blocks": [{"type": "thinking", "thinking": "Hm.", "signature": SIGNATURE}]},
    ),
    "an opaque string": (
        [{"reasoning_text": "Hm."}, {"reasoning_opaque": SIGNATURE}],
        {"reasoning_opaque": SIGNATURE},
    ),
    "an opaque string alone": ([{"reasoning_opaque": SIGNATURE}], {"reasoning_opaque": SIGNATURE}),
    "a part of the content in pieces": (  # Databricks
        [
            {"content": [{"type": "reasoning", "summary": [{**SUMMARY_TEXT, "text": "Let me "}]}]},
            {"content": [{"type": "reasoning", "summary": [{**SUMMARY_TEXT, "text": "see."}]}]},
            {"content": [{"type": "reasoning", "summary": [{**SUMMARY_TEXT, "signature": SIGNATURE}]}]},
        ],
        {
            "content": [
                {
                    "type": "reasoning",
                    "summary": [{**SUMMARY_TEXT, "text": "Let me see.", "signature": SIGNATURE}],
                }
            ]
        },
    ),
    "an encrypted part of the content": (
        [{"content": [{"type": "reasoning", "summary": [ENCRYPTED_TEXT]}]}],
        {"content": [{"type": "reasoning", "summary": [ENCRYPTED_TEXT]}]},
    ),
    "after the text": (
        [{"content": "Noon."}, {"reasoning_details": [ENCRYPTED]}],
        {"reasoning_details": [ENCRYPTED]},
    ),
}


def streamed(deltas: list[dict[str, Any]], *, call: bool) -> Answer:
    """The answer of a provider; without a call it says something."""
    last = {"tool_calls": [CALL]} if call else {"content": "It is noon."}
    return Answer(body=sse(*map(chunk, deltas), chunk(last), chunk(finish="tool_calls" if call else "stop")))


def next_turn(reply: Any, *, call: bool) -> list[dict[str, Any]]:
    """The conversation with the answer as the client got it."""
    result = [{"type": "tool_result", "tool_use_id": "call_1", "content": "Noon"}]
    return [
        *HI,
        {"role": "assistant", "content": [block.to_dict() for block in reply.content]},
        {"role": "user", "content": result if call else "And now?"},
    ]


def opaque_fields(sent: dict[str, Any]) -> dict[str, Any]:
    """What an assistant message has that is opaque."""
    names = ("reasoning_details", "thinking_blocks", "reasoning_opaque")
    content = sent["content"] if isinstance(sent["content"], list) else ()
    parts = [part for part in content if part["type"] == "reasoning"]
    return {name: sent[name] for name in names if name in sent} | ({"content": parts} if parts else {})


def unnumbered(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without the indexes of their entries."""
    return {
        name: [{key: value for key, value in entry.items() if key != "index"} for entry in field]
        if isinstance(field, list)
        else field
        for name, field in fields.items()
    }


@pytest.mark.parametrize("call", [True, False], ids=["call", "text"])
@pytest.mark.parametrize("read", [final, message])
@pytest.mark.parametrize("form", FORMS)
def test_opaque_reasoning_goes_back_to_its_provider_unchanged(
    stage: Stage, messages: Pair, form: str, read: Callable[..., Any], call: bool
) -> None:
    deltas, wanted = FORMS[form]
    stage.upstream.play(streamed(deltas, call=call))
    reply = read(messages.hub, "oai/m")
    thinking = [block for block in reply.content if block.type in ("thinking", "redacted_thinking")]
    assert thinking, reply.content
    stage.upstream.play(streamed([], call=False))
    read(messages.hub, "oai/m", messages=next_turn(reply, call=call))
    assert opaque_fields(stage.upstream.body["messages"][1]) == wanted


@pytest.mark.parametrize("read", [final, message])
@pytest.mark.parametrize("form", FORMS)
def test_opaque_reasoning_of_two_turns_goes_back_with_its_own_turn(
    stage: Stage, messages: Pair, form: str, read: Callable[..., Any]
) -> None:
    deltas, wanted = FORMS[form]
    turns: list[dict[str, Any]] = [*HI]
    for call in (True, False):
        stage.upstream.play(streamed(deltas, call=call))
        reply = read(messages.hub, "oai/m", messages=turns)
        turns += next_turn(reply, call=call)[1:]
    stage.upstream.play(streamed([], call=False))
    read(messages.hub, "oai/m", messages=turns)
    sent = [each for each in stage.upstream.body["messages"] if each["role"] == "assistant"]
    assert [opaque_fields(each) for each in sent] == [wanted, wanted]


@pytest.mark.parametrize("read", [final, message])
def test_the_signature_of_each_call_goes_back_with_its_call(
    stage: Stage, messages: Pair, read: Callable[..., Any]
) -> None:
    """Gemini's signatures are in the calls, and it refuses a conversation without them."""
    first = {**CALL, "extra_content": GOOGLE}
    second = {**CALL, "index": 1, "id": "call_2"}
    late = {"index": 1, "extra_content": {"google": {"thought_signature": "late"}}}
    body = sse(chunk({"tool_calls": [first]}), chunk({"tool_calls": [second]}), chunk({"tool_calls": [late]}))
    stage.upstream.play(Answer(body=body.replace(b"data: [DONE]\n\n", b"") + sse(chunk(finish="tool_calls"))))
    reply = read(messages.hub, "oai/m")
    turns = next_turn(reply, call=True)
    turns[-1]["content"].append({"type": "tool_result", "tool_use_id": "call_2", "content": "Noon"})
    stage.upstream.play(streamed([], call=False))
    read(messages.hub, "oai/m", messages=turns)
    sent = stage.upstream.body["messages"][1]
    assert [call.get("extra_content") for call in sent["tool_calls"]] == [GOOGLE, late["extra_content"]]
    assert [call["id"] for call in sent["tool_calls"]] == ["call_1", "call_2"]
    assert opaque_fields(sent) == {}


@pytest.mark.parametrize("form", FORMS)
def test_another_provider_does_not_get_it(stage: Stage, messages: Pair, form: str) -> None:
    stage.upstream.play(streamed(FORMS[form][0], call=True))
    turns = next_turn(final(messages.hub, "oai/m"), call=True)
    for model, answer in {
        "oai-again/m": streamed([], call=False),
        "ant/m": Answer(body=STREAMS["text"]),
        "oll/m": Answer(body=OLLAMA["text"], headers=LINES),
    }.items():
        stage.upstream.play(answer)
        final(messages.hub, model, messages=turns)
        sent = stage.upstream.requests[-1].body.decode()
        assert "dragoman-reasoning" not in sent
        assert "gAAAA" not in sent
        assert "EqQB" not in sent
        assert "call_1" in sent, "only the reasoning is left out"


def test_thinking_that_nobody_signed_does_not_go_to_anthropic(stage: Stage, messages: Pair) -> None:
    """Its API refuses a `thinking` block without a signature of its own."""
    for read in (final, message):
        stage.upstream.play(streamed([{"reasoning_content": "Hm."}], call=True))
        turns = next_turn(read(messages.hub, "oai/m"), call=True)
        assert turns[1]["content"][0]["thinking"] == "Hm."
        stage.upstream.play(Answer(body=STREAMS["text"]))
        final(messages.hub, "ant/m", messages=turns)
        sent = stage.upstream.body["messages"]
        assert [block["type"] for block in sent[1]["content"]] == ["tool_use"]
        stage.upstream.play(streamed([], call=False))
        final(messages.hub, "oai/m", messages=turns)
        assert "dragoman" not in stage.upstream.requests[-1].body.decode()


def test_encrypted_reasoning_of_a_response_does_not_go_to_other_servers_of_chat_completions(
    stage: Stage, chat: Pair
) -> None:
    stage.upstream.play(Answer(body=RESPONSES["calls"]))
    reply = completion(chat.hub, "res/m").choices[0].message.to_dict()
    assert "dragoman-responses" in str(reply["reasoning_details"])
    own = {"type": "reasoning.text", "text": "Hm.", "format": "unknown"}
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "Noon"} for call in reply["tool_calls"]
    ]
    for details in ([], [own]):
        answered = {**reply, "reasoning_details": [*reply["reasoning_details"], *details]}
        stage.upstream.play(streamed([], call=False))
        completion(chat.hub, "oai/m", messages=[*HI, answered, *results])
        sent = stage.upstream.body["messages"][1]
        assert sent.get("reasoning_details", []) == details
        assert sent["tool_calls"] == reply["tool_calls"]


def test_a_relayed_request_keeps_all_other_bytes(stage: Stage, messages: Pair) -> None:
    """Messages from which another provider's reasoning is removed."""
    foreign = {"type": "thinking", "thinking": "Hm.", "signature": 'dragoman-reasoning:{"provider":"oai"}'}
    own = {"type": "thinking", "thinking": "Hm.", "signature": "EqQB"}
    same = '{"type": "text", "text": "dragoman-reasoning: 1.50, caf\\u00e9", "x": 1.50}'
    raw = f'[{{"type":"text","text":"a"}},{msgspec.json.encode(foreign).decode()},{same}]'
    body = (
        f'{{"model":"ant/m","max_tokens":9,"stream":true,"messages":[{{"role":"user","content":"hi"}},'
        f'{{"role":"assistant","content":{raw}}},{{"role":"user","content":[{same}]}},'
        f'{{"role":"assistant","content":[{msgspec.json.encode(foreign).decode()}]}},'
        f'{{"role":"assistant","content":[{msgspec.json.encode(own).decode()}]}}]}}'
    )
    stage.upstream.play(Answer(body=STREAMS["text"]))
    messages.hub._client.post(
        f"{stage.url}/v1/messages",
        content=body.encode(),
        headers={"x-api-key": stage.key, "content-type": "application/json"},
    )
    sent = stage.upstream.requests[-1].body.decode()
    assert sent.count(same) == 2
    assert stage.upstream.body["messages"][1:] == [
        {"role": "assistant", "content": [{"type": "text", "text": "a"}, msgspec.json.decode(same)]},
        {"role": "user", "content": [msgspec.json.decode(same)]},
        {"role": "assistant", "content": [own]},
    ]


@pytest.mark.parametrize(
    "value",
    [
        "",
        "null",
        "[]",
        "{",
        "[" * 3000,
        '{"provider":["oai"],"reasoning_details":[{"data":"x"}]}',
        '{"provider":"oai"}',
        '{"call_id":7}',
        '{"call_id":"call_1","provider":"other","extra_content":{}}',
        '{"call_id":"gone","provider":"oai","extra_content":{"a":1}}',
    ],
)
def test_what_a_client_made_up_is_left_out(stage: Stage, messages: Pair, value: str) -> None:
    sealed = f"dragoman-reasoning:{value}"
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": sealed},
        {"type": "redacted_thinking", "data": sealed},
        {"type": "tool_use", "id": "call_1", "name": "time", "input": {}},
    ]
    result = [{"type": "tool_result", "tool_use_id": "call_1", "content": "Noon"}]
    turns = [*HI, {"role": "assistant", "content": content}, {"role": "user", "content": result}]
    stage.upstream.play(streamed([], call=False))
    final(messages.hub, "oai/m", messages=turns)
    sent = stage.upstream.body["messages"][1]
    assert opaque_fields(sent) == {}
    assert "extra_content" not in sent["tool_calls"][0]


@pytest.mark.parametrize("form", [name for name, (_, wanted) in FORMS.items() if "content" not in wanted])
def test_a_stream_that_becomes_a_document_keeps_its_opaque_reasoning(
    stage: Stage, chat: Pair, form: str
) -> None:
    """At the OpenAI endpoint, from a server that answers with a stream where a document was wanted."""
    deltas, wanted = FORMS[form]
    body = sse(
        *map(chunk, deltas),
        chunk({"tool_calls": [{**CALL, "extra_content": GOOGLE}]}),
        chunk(finish="tool_calls"),
    )
    stage.upstream.play(Answer(body=body))
    reply = completion(chat.hub, "oai/m", tools=[FUNCTION]).choices[0].message.to_dict()
    assert unnumbered(opaque_fields(reply)) == unnumbered(wanted)
    assert reply["tool_calls"][0]["extra_content"] == GOOGLE


def test_the_tokens_of_a_conversation_are_counted_without_it(stage: Stage, messages: Pair) -> None:
    """Anthropic refuses a signature that is not its own, also where it only counts."""
    stage.upstream.play(streamed([{"reasoning_details": [TEXT]}], call=True))
    turns = next_turn(final(messages.hub, "oai/m", messages=HI), call=True)
    stage.upstream.play(document({"input_tokens": 7}))
    assert messages.hub.messages.count_tokens(model="ant/m", messages=turns).input_tokens == 7
    assert [block["type"] for block in stage.upstream.body["messages"][1]["content"]] == ["tool_use"]

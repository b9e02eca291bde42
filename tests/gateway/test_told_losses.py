"""What a client sends to a provider of another family arrives there, is named as dropped, or is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import pytest

from tests.gateway.upstream import LINES, Answer, Stage
from tests.gateway.upstream import document as json_answer
from tests.wire.anthropic_streams import STREAMS as ANTHROPIC
from tests.wire.ollama_streams import STREAMS as OLLAMA
from tests.wire.openai_streams import chunk, sse
from tests.wire.responses_streams import STREAMS as RESPONSES

MARK = "MARK7"
PNG = "iVBORw0KGgo="
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {}}
ANSWERS = {
    "oai": Answer(body=sse(chunk({"content": "ok"}), chunk(finish="stop"))),
    "ant": Answer(body=ANTHROPIC["text"]),
    "oll": Answer(body=OLLAMA["text"], headers=LINES),
    "res": Answer(body=RESPONSES["text"]),
}
Case = tuple[str, Mapping[str, Any]]  # the name that tells of the loss, and the fields of the request


def user(*content: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"messages": [{"role": "user", "content": list(content)}]}


def assistant(*content: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"messages": [*HI, {"role": "assistant", "content": list(content)}, *HI]}


def document(**fields: Any) -> Mapping[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": "a text"}
    return user({"type": "document", "source": source, **fields})


def tool(**fields: Any) -> Mapping[str, Any]:
    return {"tools": [{"name": "t", "description": "d", "input_schema": SCHEMA, **fields}]}


def failed_call() -> Mapping[str, Any]:
    call = {"type": "tool_use", "id": "a", "name": "t", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "a text"}
    turns = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return {"messages": [*HI, *turns], **tool()}


SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": MARK}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"title": MARK}]}
SAID = {"type": "text", "text": "It rains."}
IMAGE = {"type": "base64", "media_type": "image/png", "data": PNG}
BLOCKS = {"type": "content", "content": "a text"}
CONTENT = "messages[].content[]"
MESSAGES: Sequence[Case] = [
    ("tools[].input_examples", tool(input_examples=[{"a": MARK}])),
    ("tools[].defer_loading", tool(defer_loading=True)),
    ("tools[].allowed_callers", tool(allowed_callers=[MARK])),
    ("tools[].flavour", tool(flavour=MARK)),
    ("", tool(description=MARK)),
    ("", document(title=MARK)),
    (f"{CONTENT}.context", document(context=MARK)),
    (f"{CONTENT}.citations", document(citations={"enabled": True})),
    (f"{CONTENT}.context", user({"type": "document", "source": BLOCKS, "context": MARK})),
    (f"{CONTENT}.citations", user({"type": "document", "source": BLOCKS, "citations": {"enabled": True}})),
    (f"{CONTENT}.transformations", user({"type": "image", "source": IMAGE, "transformations": [MARK]})),
    (f"{CONTENT}.flavour", user({**SAID, "flavour": MARK})),
    ("messages[].flavour", {"messages": [{**HI[0], "flavour": MARK}]}),
    (f"{CONTENT}.type.compaction", assistant({"type": "compaction", "content": MARK})),
    (f"{CONTENT}.type.server_tool_use", assistant(SEARCH, FOUND, SAID)),
    (f"{CONTENT}.is_error", failed_call()),
    ("metadata.team", {"metadata": {"user_id": "u", "team": MARK}}),
    ("container", {"container": MARK}),
    ("thinking", {"thinking": {"type": "between_tools"}}),
    ("thinking", {"thinking": {"type": "flavoured"}}),
    ("extra_body", {"extra_body": {"a": MARK}}),
    ("output_config.task_budget", {"output_config": {"task_budget": {"type": "tokens", "total": 5}}}),
]


def function(**fields: Any) -> Mapping[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "t", "parameters": SCHEMA, **fields}}]}


def image(**fields: Any) -> Mapping[str, Any]:
    url = {"url": f"data:image/png;base64,{PNG}", **fields}
    return user({"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": url})


CALL = {"id": "a", "type": "function", "function": {"name": "t", "arguments": f'{{"x": "{MARK}'}}
CHAT: Sequence[Case] = [
    (f"{CONTENT}.image_url.detail", image(detail="low")),
    (f"{CONTENT}.image_url.flavour", image(flavour=MARK)),
    ("messages[].name", {"messages": [{**HI[0], "name": MARK}]}),
    (
        "messages[].tool_calls[].function.arguments",
        {"messages": [*HI, {"role": "assistant", "tool_calls": [CALL]}, *HI], **function()},
    ),
    ("tools[].function.flavour", function(flavour=MARK)),
    ("", function(description=MARK)),
    ("web_search_options", {"web_search_options": {}}),
    ("extra_body", {"extra_body": {"a": MARK}}),
    ("seed", {"seed": 0}),
    ("response_format", {"response_format": {"type": "grammar", "grammar": MARK}}),
    ("messages", user({"type": "text", "text": ""})),
    ("prediction", {"prediction": {"type": "content", "content": MARK}}),
    ("modalities", {"modalities": ["text", "audio"], "audio": {"voice": MARK, "format": "wav"}}),
    ("n", {"n": 2}),
    ("logprobs", {"logprobs": True}),
    ("parallel_tool_calls", {**function(), "parallel_tool_calls": False}),
    ("flavour", {"flavour": MARK}),
]


def items(*before: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"input": [*before, *HI]}


def part(**fields: Any) -> Mapping[str, Any]:
    return items({"role": "user", "content": [{"type": "input_text", "text": "hi", **fields}]})


def output_text(**fields: Any) -> Mapping[str, Any]:
    return items({"role": "assistant", "content": [{"type": "output_text", "text": "hi", **fields}]})


SHELL = {"type": "local_shell_call", "id": "ls_1", "call_id": "ls_1", "action": {"command": ["ls"]}}
CLICK = {"type": "computer_call", "id": "cu_1", "call_id": "cu_1", "action": {"type": "click", "x": 1}}
PATCH = {"type": "apply_patch_call", "id": "ap_1", "call_id": "ap_1", "operation": {"type": "delete_file"}}
SCREEN = {"type": "computer_screenshot", "image_url": f"data:image/png;base64,{MARK}AA="}
PROGRAM = {"type": "program", "id": "p_1", "call_id": "p_1", "code": MARK}
SAID_NO = {"type": "mcp_approval_response", "approval_request_id": "a_1", "approve": False}
REPLY = {"role": "assistant", "content": "ok"}
RESPONSES_REQUESTS: Sequence[Case] = [
    ("input[].type.web_search_call", items({"type": "web_search_call", "id": "ws_1", "status": "completed"})),
    ("input[].type.image_generation_call", items({"type": "image_generation_call", "result": MARK})),
    ("input[].type.program", items(PROGRAM, {"type": "program_output", "call_id": "p_1", "result": MARK})),
    ("input[].type.mcp_list_tools", items({"type": "mcp_list_tools", "server_label": "x", "tools": []})),
    ("input[].type.mcp_approval_response", items(SAID_NO, REPLY)),
    ("input[0].type", items(SAID_NO)),
    ("input[].type.hologram", items({"type": "hologram", "data": MARK}, REPLY)),
    ("input[0].type", items({"type": "hologram", "data": MARK})),
    ("input[].flavour", items({**HI[0], "flavour": MARK})),
    ("input[].phase", items({**REPLY, "phase": "commentary"})),
    ("input[].content[].flavour", part(flavour=MARK)),
    ("input[].content[].annotations", output_text(annotations=[{"type": "url_citation", "url": MARK}])),
    ("", items(SHELL, {"type": "local_shell_call_output", "id": "ls_1", "output": MARK})),
    ("", items(CLICK, {"type": "computer_call_output", "call_id": "cu_1", "output": SCREEN})),
    (
        "",
        items(
            PATCH,
            {"type": "apply_patch_call_output", "call_id": "ap_1", "status": "failed", "output": MARK},
        ),
    ),
    ("prompt", {"prompt": {"id": "pmpt_1"}}),
    ("tool_choice", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}),
    (
        "tool_choice.tools[].type.web_search",
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}},
    ),
    ("tools[].type.web_search", {"tools": [{"type": "web_search"}]}),
    ("tools[].flavour", {"tools": [{"type": "custom", "name": "t", "flavour": MARK}]}),
    (
        "tools[].namespace.description",
        {"tools": [{"type": "namespace", "name": "n", "description": MARK, "tools": []}]},
    ),
    ("truncation", {"truncation": "auto"}),
    ("moderation", {"moderation": {"model": MARK}}),
]
READS: Mapping[str, Sequence[str]] = {  # what a family has, under a name of its own or the same
    "oai": (),
    "ant": ("parallel_tool_calls",),
    "oll": ("seed", "thinking"),
    "res": ("parallel_tool_calls", f"{CONTENT}.image_url.detail"),
}


def ask(stage: Stage, path: str, model: str, fields: Mapping[str, Any]) -> httpx2.Response:
    own = {"input": HI, "store": False} if "responses" in path else {"messages": HI, "max_tokens": 3000}
    body = {"model": model, **own, **fields}
    stage.upstream.play(ANSWERS[model.partition("/")[0]])
    headers = {"authorization": f"Bearer {stage.key}"}
    return httpx2.post(f"{stage.url}{path}", json=body, headers=headers, trust_env=False, timeout=60)


@pytest.mark.parametrize(
    ("path", "provider", "cases"),
    [("/v1/messages", name, MESSAGES) for name in ("oai", "oll", "res")]
    + [("/v1/chat/completions", name, CHAT) for name in ("ant", "oll", "res")]
    + [("/v1/responses", name, RESPONSES_REQUESTS) for name in ("oai", "ant", "oll")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nothing_is_dropped_silently(stage: Stage, path: str, provider: str, cases: Sequence[Case]) -> None:
    silent = []
    for name, fields in cases:
        answer = ask(stage, path, f"{provider}/claude-opus-4-5", fields)
        named = answer.headers.get("x-dragoman-dropped", "").split(",")
        arrived = bool(stage.upstream.requests) and MARK.encode() in stage.upstream.requests[-1].body
        refused = answer.status_code == 400 and name in answer.text
        assert answer.status_code == 200 or refused, answer.text
        if not (refused or name in named or (arrived and MARK in str(fields)) or name in READS[provider]):
            silent.append((name, named))
    assert silent == []


def test_the_header_that_names_dropped_fields_is_short(stage: Stage) -> None:
    fields = {f"{'é' * 500}{number}": 1 for number in range(500)}
    answer = ask(stage, "/v1/chat/completions", "ant/m", fields)
    assert answer.status_code == 200
    assert answer.headers["x-dragoman-dropped"].endswith(",...")
    assert len(answer.headers["x-dragoman-dropped"]) < 40_000


def test_a_provider_of_the_responses_api_gets_every_item_and_field_byte_for_byte(stage: Stage) -> None:
    for name, fields in RESPONSES_REQUESTS:
        answer = ask(stage, "/v1/responses", "res/m", {**fields, "stream": True})
        assert answer.status_code == 200, name
        assert "x-dragoman-dropped" not in answer.headers
        sent = stage.upstream.body
        assert {name: sent[name] for name in fields} == fields


def test_a_call_that_failed_is_told_as_such(stage: Stage) -> None:
    output = {"type": "apply_patch_call_output", "call_id": "ap_1", "status": "failed"}
    ask(stage, "/v1/responses", "ant/claude-opus-4-5", items(PATCH, output))
    (result,) = [
        block
        for message in stage.upstream.body["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    assert (result["is_error"], result["content"]) == (True, "the call failed")


def test_cache_marks_of_responses_parts_are_kept(stage: Stage) -> None:
    ask(stage, "/v1/responses", "ant/claude-opus-4-5", part(prompt_cache_breakpoint={"mode": "explicit"}))
    assert stage.upstream.body["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral"}


@pytest.mark.parametrize("provider", ["ant", "res"])
def test_calls_with_the_same_id_reach_a_strict_provider_under_ids_of_their_own(
    stage: Stage, provider: str
) -> None:
    calls = [{**CALL, "function": {"name": "t", "arguments": "{}"}}] * 2
    results = [{"role": "tool", "tool_call_id": "a", "content": f"result {number}"} for number in (1, 2)]
    fields = {"messages": [*HI, {"role": "assistant", "tool_calls": calls}, *results]}
    assert ask(stage, "/v1/chat/completions", f"{provider}/claude-opus-4-5", fields).status_code == 200
    ids = re.findall(rb'"(?:id|tool_use_id|call_id)":\s*"([^"]+)"', stage.upstream.requests[-1].body)
    assert ids == [b"a", b"a-2", b"a", b"a-2"]


def test_cache_marks_of_anthropic_clients_reach_the_responses_api_until_it_refuses_them(stage: Stage) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    fields = {
        "system": [{"type": "text", "text": "Be brief.", **mark}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi", **mark}]}],
    }
    assert ask(stage, "/v1/messages", "res/m", fields).status_code == 200
    breakpoint = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    assert [item["content"] for item in stage.upstream.body["input"]] == [
        [{"type": "input_text", "text": "Be brief.", **breakpoint}],
        [{"type": "input_text", "text": "hi", **breakpoint}],
    ]
    refusal = {"message": "Unknown parameter: 'input[0].content[0].prompt_cache_breakpoint'.", "param": None}
    stage.upstream.play(json_answer({"error": refusal}, status=400), ANSWERS["res"])
    headers = {"authorization": f"Bearer {stage.key}"}
    body = {"model": "res/old", "max_tokens": 10, **fields}
    answer = httpx2.post(f"{stage.url}/v1/messages", json=body, headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 200
    assert [item["content"] for item in stage.upstream.body["input"]] == ["Be brief.", "hi"]

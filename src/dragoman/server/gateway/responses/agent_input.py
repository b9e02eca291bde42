"""The new input in a request for an agent: a user message, outputs of tools, answers to approvals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.agent.requested_format import requested_output
from dragoman.errors import BadRequest, Conflict
from dragoman.ids import new_id
from dragoman.messages import Message, Part
from dragoman.model_request import Tool
from dragoman.runs.requested_inputs import RequestedInputs
from dragoman.server.gateway.responses.state import RequestState
from dragoman.wire.responses.client_request import ResponsesRequest, parse_responses_request
from dragoman.wire.responses.client_tools import TOOL_SEARCH
from dragoman.wire.ui.client_request import ClientApprovalAnswer, ClientToolOutput, ContinueAnswer

_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ANSWER = "mcp_approval_response"
_UNUSED_FIELDS = (
    *("instructions", "reasoning", "tool_choice", "parallel_tool_calls"),
    *("max_output_tokens", "temperature", "top_p", "top_logprobs", "service_tier", "truncation"),
    *("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"),
)
"""Fields about the model of a request, which an agent does not use: it has its own settings."""
MAX_CALLS = 1_000_000
_encode = msgspec.json.Encoder().encode


class AgentInput(msgspec.Struct, frozen=True, kw_only=True):
    """The new input in a request: a message of the user, or inputs that an answer waits for.

    `tools` are those that the agent may call; `dropped` names the fields that it does not use.
    `max_tool_calls` and `output_format` are those of a `ChatRequest`.
    """

    state: RequestState
    parsed: ResponsesRequest
    tools: Sequence[Tool]
    outputs: Sequence[Mapping[str, Any]]
    answers: Sequence[Mapping[str, Any]]
    max_tool_calls: int | None
    output_format: str | None
    dropped: Sequence[str]


def read_input(state: RequestState) -> AgentInput:
    """Parse the new input in a request. Raises BadRequest."""
    items: list[dict[str, Any]] = [msgspec.json.decode(item) for item in state.items]
    others = [item for item in items if item.get("type") not in (*_OUTPUTS, _ANSWER)]
    if any(item.get("role") == "assistant" or item.get("type") == "item_reference" for item in others):
        hint = "send previous_response_id, or the items of the last response with their ids"
        raise BadRequest("the hub has no record of the conversation in input", field="input", hint=hint)
    calls = [
        item for item in others if item.get("type") not in ("function_call", "custom_tool_call", "reasoning")
    ]
    content = calls or [{"role": "user", "content": "-"}]
    parsed = parse_responses_request(_encode({**state.fields, "input": content}))
    if parsed.compacts:
        raise BadRequest("agents shorten their history themselves, by `context`", field="input")
    if not calls:
        parsed = replace(parsed, request=replace(parsed.request, messages=()))
    outputs = [item for item in items if item.get("type") in _OUTPUTS]
    answers = [item for item in items if item.get("type") == _ANSWER]
    tools = [tool for tool in parsed.request.tools if not parsed.tools.is_search(tool.name)]
    calls_limit = parsed.response_fields["max_tool_calls"]
    return AgentInput(
        max_tool_calls=None if calls_limit is None else min(calls_limit, MAX_CALLS),
        output_format=read_format(parsed),
        state=state,
        parsed=parsed,
        tools=tools,
        outputs=outputs,
        answers=answers,
        dropped=(*parsed.ignored_fields, *unused_fields(parsed, state, tools=tools)),
    )


def read_format(parsed: ResponsesRequest) -> str | None:
    """Return the format of the answer as JSON; None for text. Raises BadRequest."""
    fields = parsed.request.options.get("response_format")
    if fields is None:
        return None
    format = _encode(fields).decode()
    requested_output(format)  # so that it is compiled here
    return format


def unused_fields(parsed: ResponsesRequest, state: RequestState, *, tools: Sequence[Tool]) -> list[str]:
    """Return the fields of a request that a model would use and an agent does not."""
    unused = [name for name in _UNUSED_FIELDS if bytes(state.fields.get(name, b"null")) != b"null"]
    if any(message.role == "system" for message in parsed.request.messages):
        unused.append("input[].role.developer")
    if parsed.request.options.get("verbosity") is not None:
        unused.append("text.verbosity")
    if len(tools) < len(parsed.request.tools):
        unused.append(f"tools[].type.{TOOL_SEARCH}")
    return unused


def user_message(parsed: ResponsesRequest) -> Message | None:
    """Return the messages of the user as one; None without any."""
    parts: list[Part] = []
    for message in parsed.request.messages:
        if message.role == "user":
            parts += message.parts
    return Message(new_id("msg"), "user", tuple(parts)) if parts else None


def continue_answer(message: Message, agent_input: AgentInput) -> ContinueAnswer:
    """Return the continuation of an answer. Raises Conflict for what it does not wait for, BadRequest."""
    requested = RequestedInputs.of_message(message)
    outputs = [
        ClientToolOutput(str(item.get("call_id")), read_output(item.get("output")))
        for item in agent_input.outputs
    ]
    answers: list[ClientApprovalAnswer] = []
    for item in agent_input.answers:
        id, approved, reason = item.get("approval_request_id"), item.get("approve"), item.get("reason")
        if not isinstance(id, str) or id not in requested.approvals:
            raise Conflict(f"the last response does not ask for the approval {id!r:.100}")
        if not isinstance(approved, bool):
            raise BadRequest("approve must be true or false", field="input")
        reason = reason if isinstance(reason, str) else None
        answers.append(requested.answer_approval(id, approved=approved, reason=reason))
    return ContinueAnswer(message.id, tuple(outputs), tuple(answers))


def read_output(value: Any) -> Any:
    """Return the output of a client's tool: texts of a list of parts are joined."""
    if isinstance(value, list) and all(isinstance(part, dict) and "text" in part for part in value):
        return "\n".join(str(part["text"]) for part in value)
    return value

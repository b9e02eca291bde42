"""Constrained requests out: what a model is asked that has not learnt to call tools.

It is shown the tools with an example of each, and held to JSON that calls one of them or answers. When they
have been called, it is given what they gave as facts, and answers in plain text. What it says is its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import ProviderError
from dragoman.model_request import ModelRequest, Tool
from dragoman.wire.constrained.messages import (
    RESULT_EXAMPLE,
    PromptLine,
    constrained_lines,
    join_paragraphs,
    last_question,
    parts_text,
    plain_lines,
    to_messages,
    tool_rounds,
    write_json,
)
from dragoman.wire.constrained.schema import answer_schema, example_value, tool_input_schema

DEFAULT_TOOL_ROUNDS = 1  # of tool calls in one turn
MAX_EXAMPLE_TOOLS = 12  # tools that are shown with an example
MAX_SUMMARY_LENGTH = 160  # characters
CONSTRAINED_OPTIONS: Mapping[str, Any] = {"max_tokens": 256, "temperature": 0.0, "seed": 1}
TEXT_OPTIONS: Mapping[str, Any] = {"max_tokens": 256, "temperature": 0.2, "repeat_penalty": 1.1, "seed": 1}

_ANSWER_EXAMPLES = (
    ("Hello!", "Hello! How can I help you?"),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."),
    ("Write a short story.", "Once upon a time there was a fox who loved the snow."),
)
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s)|\n|$)", re.DOTALL)
_WORD = re.compile(r"[a-z]{4,}")
_STOP_WORDS = {
    "does", "from", "have", "name", "please", "tell", "that", "them", "there", "they", "this", "what",
    "which", "with", "your",
}  # fmt: skip


class ConstrainedRequest(msgspec.Struct, frozen=True):
    """A request as it is sent; `constrained` says that the answer will be JSON of the form."""

    request: ModelRequest
    constrained: bool


def prepare_request(request: ModelRequest) -> ConstrainedRequest:
    """What to send instead of the request: no tools in it, and text only.

    Calls are offered until the turn under way has as many rounds of them as the option `tool_rounds` says (1
    unless it is there), and always when the request requires one.
    """
    options = dict(request.options)
    limit = options.pop("tool_rounds", DEFAULT_TOOL_ROUNDS)
    if not isinstance(limit, int):
        raise ProviderError(f"tool_rounds must be a whole number, got {limit!r:.80}", category="bad_request")
    request = replace(request, options=options)
    called = tool_rounds(request.messages)
    allowed = called < limit or request.tool_choice == "required"
    if allowed and request.tools and request.tool_choice != "none":
        return ConstrainedRequest(_tool_request(request), constrained=True)
    return ConstrainedRequest(
        _result_request(request) if called else _text_request(request), constrained=False
    )


def _tool_request(request: ModelRequest) -> ModelRequest:
    """Call a tool, or answer."""
    lines = [
        *_examples(request.tools, user_question=last_question(request.messages)),
        *constrained_lines(request.messages),
    ]
    schema = answer_schema(request.tools, allow_answer=request.tool_choice != "required")
    held = {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}}
    listing = [
        f"- {tool.name}({', '.join(_parameter_names(tool))}): {_summary(tool)}" for tool in request.tools
    ]
    manner = "\n".join(["Reply in JSON. You have these tools:", *listing])
    return _build_request(
        request, lines, instruction=manner, options={**CONSTRAINED_OPTIONS, **request.options, **held}
    )


def _result_request(request: ModelRequest) -> ModelRequest:
    """Answer with what the calls gave."""
    lines = [*RESULT_EXAMPLE, *plain_lines(request.messages)]
    manner = "Answer with the facts you are given."
    return _build_request(
        request, lines, instruction=manner, options={**CONSTRAINED_OPTIONS, **request.options}
    )


def _text_request(request: ModelRequest) -> ModelRequest:
    """Answer."""
    return _build_request(request, plain_lines(request.messages), options={**TEXT_OPTIONS, **request.options})


def _build_request(
    request: ModelRequest, lines: Sequence[PromptLine], *, options: dict[str, Any], instruction: str = ""
) -> ModelRequest:
    if "max_completion_tokens" in request.options and "max_tokens" not in request.options:
        del options["max_tokens"]
    said = [parts_text(message.parts) for message in request.messages if message.role == "system"]
    return replace(
        request,
        messages=to_messages(lines),
        instructions=join_paragraphs(request.instructions or "", *said, instruction) or None,
        tools=(),
        tool_choice=None,
        options=options,
    )


def _examples(tools: Sequence[Tool], *, user_question: str) -> Iterator[PromptLine]:
    """Examples: answers first, then a call of each tool; the tool nearest to the question comes once more.

    All but the last are the same from request to request, so that the server can keep what it made of them.
    """
    for question, answer in _ANSWER_EXAMPLES:
        yield ("user", question)
        yield ("assistant", write_json({"answer": answer}))
    nearest = _closest_tool(tools, user_question)
    for tool in [*tools[:MAX_EXAMPLE_TOOLS], *([nearest] if nearest else [])]:
        yield ("user", _summary(tool))
        yield ("assistant", write_json({"call": tool.name, "input": example_value(tool_input_schema(tool))}))


def _closest_tool(tools: Sequence[Tool], question: str) -> Tool | None:
    """The tool that shares most words with the question, the first of them; None when none shares any."""
    words = _keywords(question)
    shared = [
        len(words & _keywords(" ".join((tool.name, _summary(tool), *_parameter_names(tool)))))
        for tool in tools
    ]
    most = max(shared, default=0)
    return tools[shared.index(most)] if most else None


def _keywords(sentence: str) -> set[str]:
    """The beginnings of its words, but for the shortest and the emptiest."""
    return {word[:5] for word in _WORD.findall(sentence.lower()) if word not in _STOP_WORDS}


def _summary(tool: Tool) -> str:
    """The first sentence of the tool's description."""
    found = _SENTENCE.match(tool.description.strip())
    return found[0].strip()[:MAX_SUMMARY_LENGTH] if found and found[0].strip() else tool.name


def _parameter_names(tool: Tool) -> list[str]:
    properties = tool.input_schema.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []

"""Convert requests for a model that was not trained to call tools.

It sees the tools with an example of each, and must write JSON that calls one of them or answers. After the
calls it gets their results as facts and answers in plain text.
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

DEFAULT_TOOL_ROUNDS = 1  # rounds of tool calls in one turn
MAX_EXAMPLE_TOOLS = 12  # tools with an example
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
    """The converted request; `constrained` tells that the answer will be JSON of the schema."""

    request: ModelRequest
    constrained: bool


def prepare_request(request: ModelRequest) -> ConstrainedRequest:
    """Convert the request to one without tools, and with text only.

    Calls are offered until the current turn has as many rounds as the option `tool_rounds` says (default 1),
    and always if the request requires a call.
    """
    options = dict(request.options)
    limit = options.pop("tool_rounds", DEFAULT_TOOL_ROUNDS)
    if not isinstance(limit, int):
        raise ProviderError(f"tool_rounds must be an integer, got {limit!r:.80}", category="bad_request")
    request = replace(request, options=options)
    rounds_done = tool_rounds(request.messages)
    may_call = rounds_done < limit or request.tool_choice == "required"
    if may_call and request.tools and request.tool_choice != "none":
        return ConstrainedRequest(_tool_request(request), constrained=True)
    return ConstrainedRequest(
        _result_request(request) if rounds_done else _text_request(request), constrained=False
    )


def _tool_request(request: ModelRequest) -> ModelRequest:
    """Ask for a call or an answer."""
    lines = [
        *_examples(request.tools, user_question=last_question(request.messages)),
        *constrained_lines(request.messages),
    ]
    schema = answer_schema(request.tools, allow_answer=request.tool_choice != "required")
    response_format = {
        "response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
    }
    listing = [
        f"- {tool.name}({', '.join(_parameter_names(tool))}): {_summary(tool)}" for tool in request.tools
    ]
    instruction = "\n".join(["Reply in JSON. You have these tools:", *listing])
    return _build_request(
        request,
        lines,
        instruction=instruction,
        options={**CONSTRAINED_OPTIONS, **request.options, **response_format},
    )


def _result_request(request: ModelRequest) -> ModelRequest:
    """Ask for an answer from the results of the calls."""
    lines = [*RESULT_EXAMPLE, *plain_lines(request.messages)]
    instruction = "Answer with the facts you are given."
    return _build_request(
        request, lines, instruction=instruction, options={**CONSTRAINED_OPTIONS, **request.options}
    )


def _text_request(request: ModelRequest) -> ModelRequest:
    """Ask for an answer."""
    return _build_request(request, plain_lines(request.messages), options={**TEXT_OPTIONS, **request.options})


def _build_request(
    request: ModelRequest, lines: Sequence[PromptLine], *, options: dict[str, Any], instruction: str = ""
) -> ModelRequest:
    if "max_completion_tokens" in request.options and "max_tokens" not in request.options:
        del options["max_tokens"]
    system_texts = [parts_text(message.parts) for message in request.messages if message.role == "system"]
    return replace(
        request,
        messages=to_messages(lines),
        instructions=join_paragraphs(request.instructions or "", *system_texts, instruction) or None,
        tools=(),
        tool_choice=None,
        options=options,
    )


def _examples(tools: Sequence[Tool], *, user_question: str) -> Iterator[PromptLine]:
    """Examples: answers first, then a call of each tool; the tool closest to the question again at the end.

    All but the last are the same in every request, so that the server can cache them.
    """
    for question, answer in _ANSWER_EXAMPLES:
        yield ("user", question)
        yield ("assistant", write_json({"answer": answer}))
    closest = _closest_tool(tools, user_question)
    for tool in [*tools[:MAX_EXAMPLE_TOOLS], *([closest] if closest else [])]:
        yield ("user", _summary(tool))
        yield ("assistant", write_json({"call": tool.name, "input": example_value(tool_input_schema(tool))}))


def _closest_tool(tools: Sequence[Tool], question: str) -> Tool | None:
    """Return the first of the tools that share the most words with the question; None if none shares any."""
    question_words = _keywords(question)
    scores = [
        len(question_words & _keywords(" ".join((tool.name, _summary(tool), *_parameter_names(tool)))))
        for tool in tools
    ]
    highest = max(scores, default=0)
    return tools[scores.index(highest)] if highest else None


def _keywords(sentence: str) -> set[str]:
    """Return the first letters of its words, without short words and stop words."""
    return {word[:5] for word in _WORD.findall(sentence.lower()) if word not in _STOP_WORDS}


def _summary(tool: Tool) -> str:
    """Return the first sentence of the tool's description."""
    match = _SENTENCE.match(tool.description.strip())
    return match[0].strip()[:MAX_SUMMARY_LENGTH] if match and match[0].strip() else tool.name


def _parameter_names(tool: Tool) -> list[str]:
    properties = tool.input_schema.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []

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
from dragoman.request import ModelRequest, Tool
from dragoman.wire.constrained.history import (
    FACTS_SHOT,
    Line,
    asked,
    conversation,
    joined,
    messages,
    protocol,
    rounds,
    text,
    write_json,
)
from dragoman.wire.constrained.schema import example, form, input_form

ROUNDS = 1  # of tool calls in one turn
SHOWN = 12  # tools that are shown with an example
LONGEST_SUMMARY = 160  # characters
STRICT: Mapping[str, Any] = {"max_tokens": 256, "temperature": 0.0, "seed": 1}
TALKING: Mapping[str, Any] = {"max_tokens": 256, "temperature": 0.2, "repeat_penalty": 1.1, "seed": 1}

_ANSWERS = (
    ("Hello!", "Hello! How can I help you?"),
    ("Who wrote Hamlet?", "William Shakespeare wrote Hamlet."),
    ("Write a short story.", "Once upon a time there was a fox who loved the snow."),
)
_SENTENCE = re.compile(r".*?(?:[.!?](?=\s)|\n|$)", re.DOTALL)
_WORD = re.compile(r"[a-z]{4,}")
_EMPTY_WORDS = {
    "does", "from", "have", "name", "please", "tell", "that", "them", "there", "they", "this", "what",
    "which", "with", "your",
}  # fmt: skip


class Ask(msgspec.Struct, frozen=True):
    """A request as it is sent; `constrained` says that the answer will be JSON of the form."""

    request: ModelRequest
    constrained: bool


def prepare(request: ModelRequest) -> Ask:
    """What to send instead of the request: no tools in it, and text only.

    Calls are offered until the turn under way has as many rounds of them as the option `tool_rounds` says (1
    unless it is there), and always when the request requires one.
    """
    options = dict(request.options)
    limit = options.pop("tool_rounds", ROUNDS)
    if not isinstance(limit, int):
        raise ProviderError(f"tool_rounds must be a whole number, got {limit!r:.80}", category="bad_request")
    request = replace(request, options=options)
    called = rounds(request.messages)
    allowed = called < limit or request.tool_choice == "required"
    if allowed and request.tools and request.tool_choice != "none":
        return Ask(_offer(request), constrained=True)
    return Ask(_ground(request) if called else _talk(request), constrained=False)


def _offer(request: ModelRequest) -> ModelRequest:
    """Call a tool, or answer."""
    lines = [*_shots(request.tools, near=asked(request.messages)), *protocol(request.messages)]
    schema = form(request.tools, answer=request.tool_choice != "required")
    held = {"response_format": {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}}
    listing = [f"- {tool.name}({', '.join(_parameters(tool))}): {_summary(tool)}" for tool in request.tools]
    manner = "\n".join(["Reply in JSON. You have these tools:", *listing])
    return _sent(request, lines, manner=manner, options={**STRICT, **request.options, **held})


def _ground(request: ModelRequest) -> ModelRequest:
    """Answer with what the calls gave."""
    lines = [*FACTS_SHOT, *conversation(request.messages)]
    manner = "Answer with the facts you are given."
    return _sent(request, lines, manner=manner, options={**STRICT, **request.options})


def _talk(request: ModelRequest) -> ModelRequest:
    """Answer."""
    return _sent(request, conversation(request.messages), options={**TALKING, **request.options})


def _sent(
    request: ModelRequest, lines: Sequence[Line], *, options: dict[str, Any], manner: str = ""
) -> ModelRequest:
    if "max_completion_tokens" in request.options and "max_tokens" not in request.options:
        del options["max_tokens"]
    said = [text(message.parts) for message in request.messages if message.role == "system"]
    return replace(
        request,
        messages=messages(lines),
        instructions=joined(request.instructions or "", *said, manner) or None,
        tools=(),
        tool_choice=None,
        options=options,
    )


def _shots(tools: Sequence[Tool], *, near: str) -> Iterator[Line]:
    """Examples: answers first, then a call of each tool; the tool nearest to the question comes once more.

    All but the last are the same from request to request, so that the server can keep what it made of them.
    """
    for question, answer in _ANSWERS:
        yield ("user", question)
        yield ("assistant", write_json({"answer": answer}))
    nearest = _nearest(tools, near)
    for tool in [*tools[:SHOWN], *([nearest] if nearest else [])]:
        yield ("user", _summary(tool))
        yield ("assistant", write_json({"call": tool.name, "input": example(input_form(tool))}))


def _nearest(tools: Sequence[Tool], question: str) -> Tool | None:
    """The tool that shares most words with the question, the first of them; None when none shares any."""
    words = _words(question)
    shared = [
        len(words & _words(" ".join((tool.name, _summary(tool), *_parameters(tool))))) for tool in tools
    ]
    most = max(shared, default=0)
    return tools[shared.index(most)] if most else None


def _words(said: str) -> set[str]:
    """The beginnings of its words, but for the shortest and the emptiest."""
    return {word[:5] for word in _WORD.findall(said.lower()) if word not in _EMPTY_WORDS}


def _summary(tool: Tool) -> str:
    """The first sentence of the tool's description."""
    found = _SENTENCE.match(tool.description.strip())
    return found[0].strip()[:LONGEST_SUMMARY] if found and found[0].strip() else tool.name


def _parameters(tool: Tool) -> list[str]:
    properties = tool.input_schema.get("properties")
    return list(properties) if isinstance(properties, Mapping) else []

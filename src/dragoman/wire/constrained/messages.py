"""Write the conversation for a model that cannot call tools; tool results become facts in the text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from dragoman.messages import Message, Part, Role, StepStartPart, TextPart, ToolPart
from dragoman.wire.json_codec import encode_json
from dragoman.wire.multimodal_outputs import without_files
from dragoman.wire.openai.messages import write_content
from dragoman.wire.step_splitting import tool_result_text

PromptLine = tuple[Role, str]

MAX_RESULT_LENGTH = 2_000  # characters of one call's result
_EXAMPLE_QUESTION = """Facts from count_words(to be or not):
4

Answer with these facts: How many words are in "to be or not"?"""
RESULT_EXAMPLE: Sequence[PromptLine] = (
    ("user", _EXAMPLE_QUESTION),
    ("assistant", 'There are 4 words in "to be or not".'),
)


def constrained_lines(history: Sequence[Message]) -> Iterator[PromptLine]:
    """Return the history as constrained JSON: calls and answers as the model would have written them."""
    for message in history:
        match message.role:
            case "system":
                pass  # sent with the instructions
            case "user":
                yield ("user", parts_text(message.parts))
            case "assistant":
                yield from _assistant_lines(message, last=message is history[-1])
            case _:
                assert_never(message.role)


def plain_lines(history: Sequence[Message]) -> list[PromptLine]:
    """Return the history as plain text; results come before the question that led to them."""
    lines: list[PromptLine] = []
    for message in history:
        match message.role:
            case "system":
                pass
            case "user":
                lines.append(("user", parts_text(message.parts)))
            case "assistant":
                facts = [_result_text(part) for part in message.parts if isinstance(part, ToolPart)]
                if facts:
                    question = lines.pop()[1] if lines and lines[-1][0] == "user" else ""
                    lines.append(("user", "\n\n".join([*facts, f"Answer with these facts: {question}"])))
                if message is not history[-1]:
                    lines.append(("assistant", parts_text(message.parts)))
            case _:
                assert_never(message.role)
    return lines


def to_messages(lines: Sequence[PromptLine]) -> list[Message]:
    """Convert the lines to messages; adjacent lines of one role are merged, since chat templates need
    turns.
    """
    merged: list[PromptLine] = []
    for role, content in lines:
        if merged and merged[-1][0] == role:
            merged[-1] = (role, join_paragraphs(merged[-1][1], content))
        elif content:
            merged.append((role, content))
    return [Message(str(index), role, (TextPart(content),)) for index, (role, content) in enumerate(merged)]


def tool_rounds(history: Sequence[Message]) -> int:
    """How many steps of the current turn have called tools."""
    message = history[-1] if history else None
    if message is None or message.role != "assistant":
        return 0
    calling_steps: set[int] = set()
    step = 0
    for part in message.parts:
        step += isinstance(part, StepStartPart)
        if isinstance(part, ToolPart):
            calling_steps.add(step)
    return len(calling_steps)


def last_question(history: Sequence[Message]) -> str:
    """Return the last question."""
    return next((parts_text(message.parts) for message in reversed(history) if message.role == "user"), "")


def parts_text(parts: Sequence[Part]) -> str:
    """Return the text of the parts; a file that is not text is only mentioned."""
    text_or_parts = write_content(parts)
    if isinstance(text_or_parts, str):
        return text_or_parts
    return "\n".join(part.get("text") or "[a file that this model cannot read]" for part in text_or_parts)


def join_paragraphs(*texts: str) -> str:
    """Join the non-empty texts as paragraphs."""
    return "\n\n".join(filter(None, texts))


def write_json(value: Any) -> str:
    """JSON as a small model writes it most easily: with spaces and unescaped letters."""
    return json.dumps(value, ensure_ascii=False)


def _assistant_lines(message: Message, *, last: bool) -> Iterator[PromptLine]:
    for part in message.parts:
        if isinstance(part, ToolPart):
            yield ("assistant", write_json({"call": part.name, "input": _call_input(part)}))
            yield ("user", _result_text(part))
        elif isinstance(part, TextPart) and part.text and not last:
            yield ("assistant", write_json({"answer": part.text}))


def _result_text(part: ToolPart) -> str:
    """Return the result of a call as text."""
    output = (
        "\n".join(_value_lines(without_files(part.output)))
        if part.state == "output-available"
        else f"error: {tool_result_text(part)}"
    )
    values = ", ".join(_scalar_text(value) for value in _call_input(part).values())
    shortened = output if len(output) <= MAX_RESULT_LENGTH else f"{output[:MAX_RESULT_LENGTH]}…"
    return f"Facts from {part.name}({values}):\n{shortened}"


def _value_lines(value: Any, indent: str = "") -> Iterator[str]:
    """Return a JSON value as lines that a small model can read."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            if isinstance(item, Mapping | list) and item:
                yield f"{indent}{name}:"
                yield from _value_lines(item, f"{indent}  ")
            else:
                yield f"{indent}{name}: {_scalar_text(item)}"
    elif isinstance(value, list):
        for item in value:
            pairs = item.items() if isinstance(item, Mapping) else ()
            yield (
                f"{indent}- "
                f"{', '.join(f'{key}: {_scalar_text(of)}' for key, of in pairs) or _scalar_text(item)}"
            )
    else:
        yield f"{indent}{_scalar_text(value)}"


def _scalar_text(value: Any) -> str:
    return value if isinstance(value, str) else encode_json(value)


def _call_input(part: ToolPart) -> Mapping[str, Any]:
    return part.input if isinstance(part.input, Mapping) else {}

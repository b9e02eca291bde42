"""Constrained history: what was said, as lines for a model that knows no tools; results are facts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

from dragoman.messages import Message, Part, Role, StepStartPart, TextPart, ToolPart
from dragoman.wire.openai.messages import encode_json, tool_result_text, write_content

PromptLine = tuple[Role, str]

MAX_RESULT_LENGTH = 2_000  # characters of what one call gave
_EXAMPLE_QUESTION = """Facts from count_words(to be or not):
4

Answer with these facts: How many words are in "to be or not"?"""
RESULT_EXAMPLE: Sequence[PromptLine] = (
    ("user", _EXAMPLE_QUESTION),
    ("assistant", 'There are 4 words in "to be or not".'),
)


def constrained_lines(history: Sequence[Message]) -> Iterator[PromptLine]:
    """The history as it would read had all of it been constrained."""
    for message in history:
        match message.role:
            case "system":
                pass  # with the instructions
            case "user":
                yield ("user", parts_text(message.parts))
            case "assistant":
                yield from _assistant_lines(message, last=message is history[-1])
            case _:
                assert_never(message.role)


def plain_lines(history: Sequence[Message]) -> list[PromptLine]:
    """The history in plain words; what calls gave stands before the question that led to them."""
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
    """The lines as messages; neighbours of one side become one, since chat templates want turns."""
    taken: list[PromptLine] = []
    for role, said in lines:
        if taken and taken[-1][0] == role:
            taken[-1] = (role, join_paragraphs(taken[-1][1], said))
        elif said:
            taken.append((role, said))
    return [Message(str(at), role, (TextPart(said),)) for at, (role, said) in enumerate(taken)]


def tool_rounds(history: Sequence[Message]) -> int:
    """How many steps of the turn under way have called tools."""
    last = history[-1] if history else None
    if last is None or last.role != "assistant":
        return 0
    calling: set[int] = set()
    step = 0
    for part in last.parts:
        step += isinstance(part, StepStartPart)
        if isinstance(part, ToolPart):
            calling.add(step)
    return len(calling)


def last_question(history: Sequence[Message]) -> str:
    """The last question."""
    return next((parts_text(message.parts) for message in reversed(history) if message.role == "user"), "")


def parts_text(parts: Sequence[Part]) -> str:
    """The text of the parts; a file that is no text is only mentioned."""
    said = write_content(parts)
    if isinstance(said, str):
        return said
    return "\n".join(part.get("text") or "[a file that this model cannot read]" for part in said)


def join_paragraphs(*texts: str) -> str:
    """The texts that say something, as paragraphs."""
    return "\n\n".join(filter(None, texts))


def write_json(value: Any) -> str:
    """JSON as a small model writes it most easily: with spaces, and letters as they are."""
    return json.dumps(value, ensure_ascii=False)


def _assistant_lines(message: Message, *, last: bool) -> Iterator[PromptLine]:
    for part in message.parts:
        if isinstance(part, ToolPart):
            yield ("assistant", write_json({"call": part.name, "input": _call_input(part)}))
            yield ("user", _result_text(part))
        elif isinstance(part, TextPart) and part.text and not last:
            yield ("assistant", write_json({"answer": part.text}))


def _result_text(part: ToolPart) -> str:
    """What a call gave, in words."""
    told = (
        "\n".join(_value_lines(part.output))
        if part.state == "output-available"
        else f"error: {tool_result_text(part)}"
    )
    values = ", ".join(_scalar_text(value) for value in _call_input(part).values())
    short = told if len(told) <= MAX_RESULT_LENGTH else f"{told[:MAX_RESULT_LENGTH]}…"
    return f"Facts from {part.name}({values}):\n{short}"


def _value_lines(value: Any, indent: str = "") -> Iterator[str]:
    """A JSON value as lines that a small model can read."""
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
                f"{', '.join(f'{name}: {_scalar_text(of)}' for name, of in pairs) or _scalar_text(item)}"
            )
    else:
        yield f"{indent}{_scalar_text(value)}"


def _scalar_text(value: Any) -> str:
    return value if isinstance(value, str) else encode_json(value)


def _call_input(part: ToolPart) -> Mapping[str, Any]:
    return part.input if isinstance(part.input, Mapping) else {}

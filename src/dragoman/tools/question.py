"""The question: a model asks the person that it works for, and waits for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import CallError
from dragoman.operations.approval import Question
from dragoman.operations.arguments.validation import invalid_input, make_parser, make_problem
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "text": {
            "type": "string",
            "minLength": 1,
            "maxLength": 4_000,
            "description": "The question, in plain words.",
        },
        "options": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 500},
            "maxItems": 20,
            "description": "Answers to choose from, if there are any. Another one may be given, too.",
        },
    },
    "required": ["text"],
    "additionalProperties": False,
}
parse = make_parser(SCHEMA)


def parse_question(input: Mapping[str, Any]) -> Question:
    """The question in a call's input. InvalidInput when it is none."""
    said = parse(input)
    text = said["text"].strip()
    if not text:
        raise invalid_input([make_problem(("text",), "a question", got=said["text"])])
    return Question(text, tuple(dict.fromkeys(said.get("options", ()))))


async def return_answer(_: Mapping[str, Any], context: Context) -> str:
    """What the person said."""
    if context.answer is None:
        raise CallError("nobody was asked: a question needs a person at the other end")
    return context.answer


question = Operation(
    namespace="user",
    name="question",
    description="Ask the user a question, and wait for the answer: for what only they can know or decide.",
    input_schema=SCHEMA,
    output_schema={"type": "string"},
    parse=parse,
    run=return_answer,
    effect="read",
    make_question=parse_question,
)
"""The operation `user.question`."""

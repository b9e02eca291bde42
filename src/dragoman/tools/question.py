"""`user.question`: a model asks the user, and waits for the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dragoman.errors import CallError
from dragoman.operations.approval import Question
from dragoman.operations.arguments.validation import invalid_input, make_late_parser, make_problem
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
            "description": "Suggested answers, if any. The user may also give another one.",
        },
    },
    "required": ["text"],
    "additionalProperties": False,
}
parse = make_late_parser(SCHEMA)


def parse_question(input: Mapping[str, Any]) -> Question:
    """Parse a call's input. Raises InvalidInput."""
    fields = parse(input)
    text = fields["text"].strip()
    if not text:
        raise invalid_input([make_problem(("text",), "a question", got=fields["text"])])
    return Question(text, tuple(dict.fromkeys(fields.get("options", ()))))


async def return_answer(_: Mapping[str, Any], context: Context) -> str:
    """Return the user's answer. Raises CallError for a call that nobody was asked about."""
    if context.answer is None:
        raise CallError("The question was not asked: there is no person at the other end.")
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

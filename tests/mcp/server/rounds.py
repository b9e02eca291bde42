"""The conformance suite's fixtures that ask for input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dragoman.mcp.server.elicitation import RequestClaim, StateSigner
from tests.mcp.server.contents import text

Answer = dict[str, Any]
SEAL = StateSigner()
PREFIX = "test_input_required_result_"
PROMPT = f"{PREFIX}prompt"
NEEDS = {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}


def form(message: str, **fields: str) -> Answer:
    """A question for fields of these types."""
    properties = {name: {"type": type} for name, type in fields.items()}
    schema = {"type": "object", "properties": properties, "required": list(fields)}
    params = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": params}


def sampling(reply: str, tokens: int) -> Answer:
    messages = [{"role": "user", "content": text(reply)}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": tokens}}


NAME = {"user_name": form("What is your name?", name="string")}
ROOTS = {"client_roots": {"method": "roots/list", "params": {}}}
CONTEXT = {"user_context": form("What context should the prompt use?", context="string")}
CONFIRM = {"confirm": form("Please confirm", ok="boolean")}
CAPITAL = {"capital_question": sampling("What is the capital of France?", 100)}
MANY = {**NAME, "greeting": sampling("Generate a greeting", 50), **ROOTS}
STEPS = (
    {"step1": form("Step 1: What is your name?", name="string")},
    {"step2": form("Step 2: What is your favorite color?", color="string")},
)
# By tool: what is asked in each round, and whether the client has to bring a state back.
QUESTIONS: Mapping[str, tuple[tuple[Mapping[str, Answer], ...], bool]] = {
    f"{PREFIX}elicitation": ((NAME,), False),
    f"{PREFIX}sampling": ((CAPITAL,), False),
    f"{PREFIX}list_roots": ((ROOTS,), False),
    f"{PREFIX}request_state": ((CONFIRM,), True),
    f"{PREFIX}multiple_inputs": ((MANY,), True),
    f"{PREFIX}multi_round": (STEPS, True),
    f"{PREFIX}tampered_state": ((CONFIRM,), True),
    f"{PREFIX}capabilities": ((MANY,), False),
    "test_streaming_elicitation": ((NAME,), False),
}


def answer(name: str, arguments: Mapping[str, Any], *, state: str | None, able: set[str]) -> Answer:
    """The next question that is open, of those that the client can be asked; else the result."""
    questions, keeps = QUESTIONS[name]
    at = int(SEAL.verify(state).approval_id) if state is not None else 0
    request = {key: each for key, each in questions[at].items() if NEEDS[each["method"]] in able}
    if not all(is_answer(arguments.get(key)) for key in request):
        return question(name, request, at=at, keeps=keeps)
    if at + 1 < len(questions):
        return question(name, questions[at + 1], at=at + 1, keeps=keeps)
    return {"content": [text(f"state-ok: {json.dumps(dict(arguments))}")]}


def question(name: str, request: Mapping[str, Answer], *, at: int = 0, keeps: bool = False) -> Answer:
    """What asks for these things."""
    state = {"requestState": SEAL.sign(RequestClaim(str(at), "", name, ""))} if keeps else {}
    return {"resultType": "input_required", "inputRequests": dict(request), **state}


def is_answer(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value) and ("action" not in value or "content" in value)

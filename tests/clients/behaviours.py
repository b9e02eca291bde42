"""The default answers of the scripted model server, chosen by a word in the model name or the user's text.

A behaviour is a list of answers, one for each step of a run; an answer is a list of moves:
`{"text": str | [str]}`, `{"reasoning": str | [str]}`, `{"calls": [{"name", "arguments", "id"?}]}` (each may
carry `"pace"`, seconds between chunks), `{"delta": {...}}` as it is, `{"wait": seconds}`, `{"gate": name}`,
`{"error": {...}}` in mid-stream, `{"cut": "reset" | "clean"}`, `{"finish": reason}`,
`{"status": 429, "body": {...}, "headers": {...}}`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

Move = dict[str, Any]
Answer = list[Move]

MARK = re.compile(r"#([a-z0-9-]+)")
UNSCRIPTED = "no answer is scripted for this step"


def calculate(expression: str) -> Move:
    """A `hub_call` of the calculator, as a model would ask for it."""
    return {
        "name": "hub_call",
        "arguments": {"calls": [{"tool": "math.calculate", "input": {"expression": expression}}]},
    }


def piece(arguments: str, **head: Any) -> Move:
    """A piece of the first call's arguments; `id` and `name` with the first piece."""
    call: dict[str, Any] = {"index": 0, "function": {"arguments": arguments}}
    if head:
        call |= {"id": head["id"], "type": "function"}
        call["function"]["name"] = head["name"]
    return {"delta": {"tool_calls": [call]}}


def failure(message: str, kind: str) -> dict[str, Any]:
    """An error body in the shape that OpenAI-compatible servers send."""
    return {"error": {"message": message, "type": kind, "code": kind}}


@dataclass
class Behaviour:
    """The answers of one key: by step of the run, or one after another when `in_order`."""

    answers: list[Answer]
    repeat: bool = False
    in_order: bool = False
    requests: int = field(default=0)

    def answer(self, step: int) -> Answer:
        """The answer for this step; a refusal when the script has none left."""
        index = self.requests if self.in_order else step
        self.requests += 1
        if self.repeat:
            index = min(index, len(self.answers) - 1)
        if index < len(self.answers):
            return self.answers[index]
        return [{"status": 400, "body": failure(UNSCRIPTED, "invalid_request_error")}]


def defaults() -> dict[str, Behaviour]:
    """The behaviours that need no script."""
    words = [f"word{number} " for number in range(100)]
    thinking = {"reasoning": ["Let me ", "think ", "about it."]}
    look = {"name": "ask_user", "arguments": {"question": "Which colour?"}}
    refused = failure("the model does not like this question", "invalid_request_error")
    down = failure("the server is on fire", "server_error")
    messages = {"text": ["Hello ", "from ", "the ", "model."]}
    return {
        "plain": Behaviour([[messages]]),
        "tool": Behaviour([[{"calls": [calculate("6*7")]}], [{"text": "6*7 is 42."}]]),
        "parallel": Behaviour([[{"calls": [calculate("2+2"), calculate("3*3")]}], [{"text": "4 and 9."}]]),
        "reasoning": Behaviour([[thinking, {"text": ["Thought ", "through."]}]]),
        "refuse": Behaviour([[{"status": 400, "body": refused}]], repeat=True),
        "down": Behaviour([[{"status": 500, "body": down}]], repeat=True),
        "midfail": Behaviour([[{"text": ["Half ", "an "]}, down]], repeat=True),
        "cut": Behaviour([[{"text": ["Half ", "an "]}, {"cut": "reset"}]], repeat=True),
        "unfinished": Behaviour([[{"text": ["Half ", "an "]}, {"cut": "clean"}]], repeat=True),
        "loop": Behaviour([[{"calls": [calculate("1+1")]}]], repeat=True),
        "slow": Behaviour([[{"text": words, "pace": 0.05}]], repeat=True),
        "ask": Behaviour([[{"calls": [look]}], [{"text": "So it is blue."}]]),
    }


def key_of(body: dict[str, Any]) -> str:
    """The behaviour that a request asks for: `#key` in the last user text, else the model's name."""
    match = MARK.search(last_user_text(body))
    return match.group(1) if match else str(body.get("model", "plain"))


def step_of(body: dict[str, Any]) -> int:
    """How many answers the model has already given in this run."""
    step = 0
    for message in body.get("messages", []):
        if message["role"] == "user":
            step = 0
        elif message["role"] == "assistant":
            step += 1
    return step


def last_user_text(body: dict[str, Any]) -> str:
    """The text of the last user message, whichever way its content is spelt."""
    messages = [message for message in body.get("messages", []) if message["role"] == "user"]
    content = messages[-1]["content"] if messages else ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)

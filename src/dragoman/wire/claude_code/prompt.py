"""What Claude Code is told: the session to go on with, and a line of its input with what is new in it.

It keeps its own history: only what came after its last answer is sent. A conversation that it has no session
of is written down in words before the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.messages import Message, ReasoningPart, TextPart, ToolPart
from dragoman.request import ModelRequest
from dragoman.wire.anthropic.history import write_history
from dragoman.wire.claude_code.decoder import FAMILY, SESSION
from dragoman.wire.openai.history import plain, result

GO_ON = "Go on."
CLOSING = "(The message ends here.)"
_BEFORE = "What was said before, in another session:\n\n"
_NOW = "\n\nWhat is said now:"


class Prompt(msgspec.Struct, frozen=True):
    """`line` is what goes to the CLI's input; `session` is the one to resume; `system` are instructions."""

    line: bytes
    session: str | None = None
    system: str = ""


def write_prompt(request: ModelRequest, *, provider: str, resume: bool = True) -> Prompt:
    """The prompt for a request. Without `resume` the session is not gone on with, but told again."""
    at, session = _find(request.messages, provider) if resume else (-1, None)
    new = request.messages[at + 1 :]
    written = write_history(new, instructions=request.instructions, provider=provider)
    system = "\n\n".join(block["text"] for block in written.system)
    content = harmless(_content(new, written.messages)) or [{"type": "text", "text": GO_ON}]
    message = {
        "type": "user",
        "session_id": session or "",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
    }
    return Prompt(msgspec.json.encode(message, enc_hook=plain) + b"\n", session, system)


def harmless(content: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks, so that the CLI takes them for words.

    It runs a last text such as `/config permissionMode=auto` as a command of its own, and reads the file of
    `@/etc/passwd` in it without asking: whoever may chat could do both. Behind it stands another text, then.
    """
    texts = [block.get("text", "") for block in content if block["type"] == "text"]
    if any(text.lstrip().startswith("/") or "@" in text for text in texts):
        return [*content, {"type": "text", "text": CLOSING}]
    return list(content)


def _find(messages: Sequence[Message], provider: str) -> tuple[int, str | None]:
    """Where this provider has answered last, and in which session."""
    for at in range(len(messages) - 1, -1, -1):
        for part in reversed(messages[at].parts):
            mark = _mark(part)
            if mark.get("provider") == provider and isinstance(mark.get(SESSION), str):
                return at, mark[SESSION]
    return -1, None


def _mark(part: Any) -> Mapping[str, Any]:
    if isinstance(part, TextPart | ReasoningPart):
        return (part.provider_metadata or {}).get(FAMILY, {})
    if isinstance(part, ToolPart):
        return (part.call_provider_metadata or {}).get(FAMILY, {})
    return {}


def _content(messages: Sequence[Message], written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of what the user says, behind what others have answered meanwhile."""
    if all(message["role"] == "user" for message in written):
        return [block for message in written for block in message["content"]]
    last = max(at for at, message in enumerate(messages) if message.role == "assistant")
    before = "\n\n".join(text for message in messages[: last + 1] for text in _tell(message))
    now = [block for message in written[_behind(written) :] for block in message["content"]]
    said = [block for block in now if block["type"] != "tool_result"]
    return [
        {"type": "text", "text": f"{_BEFORE}{before}{_NOW}"},
        *(said or [{"type": "text", "text": GO_ON}]),
    ]


def _behind(written: Sequence[Mapping[str, Any]]) -> int:
    return max(at for at, message in enumerate(written) if message["role"] == "assistant") + 1


def _tell(message: Message) -> Iterator[str]:
    """A message in words."""
    if message.role == "system":
        return
    who = "User" if message.role == "user" else "Assistant"
    for part in message.parts:
        if isinstance(part, TextPart) and part.text.strip():
            yield f"{who}: {part.text}"
        elif isinstance(part, ToolPart) and part.state != "input-streaming":
            given = (
                msgspec.json.encode(part.input, enc_hook=plain).decode()
                if part.input is not msgspec.UNSET
                else "{}"
            )
            yield f"{who} called {part.name} with {given} and got: {result(part)}"

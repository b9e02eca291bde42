"""What Claude Code is told: the session to go on with, and a line of its input with what is new in it.

It keeps its own history: only what came after its last answer is sent. A conversation that it has no session
of is written down in words before the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.messages import Message, ReasoningPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.messages import write_messages
from dragoman.wire.claude_code.decoder import FAMILY, SESSION_KEY
from dragoman.wire.openai.messages import mapping_enc_hook, tool_result_text

CONTINUE_TEXT = "Go on."
CLOSING_TEXT = "(The message ends here.)"
_HISTORY_HEADING = "What was said before, in another session:\n\n"
_NEW_MESSAGE_HEADING = "\n\nWhat is said now:"


class ClaudeCodePrompt(msgspec.Struct, frozen=True):
    """`input_line` is what goes to the CLI's input; `session_id` is the one to resume; `system` are
    instructions.
    """

    input_line: bytes
    session_id: str | None = None
    system: str = ""


def write_prompt(request: ModelRequest, *, provider: str, resume: bool = True) -> ClaudeCodePrompt:
    """The prompt for a request. Without `resume` the session is not gone on with, but told again."""
    at, session = _last_session(request.messages, provider) if resume else (-1, None)
    new = request.messages[at + 1 :]
    written = write_messages(new, instructions=request.instructions, provider=provider)
    system = "\n\n".join(block["text"] for block in written.system)
    content = neutralise_commands(_write_content(new, written.messages)) or [
        {"type": "text", "text": CONTINUE_TEXT}
    ]
    message = {
        "type": "user",
        "session_id": session or "",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
    }
    return ClaudeCodePrompt(msgspec.json.encode(message, enc_hook=mapping_enc_hook) + b"\n", session, system)


def neutralise_commands(content: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The blocks, so that the CLI takes them for words.

    It runs a last text such as `/config permissionMode=auto` as a command of its own, and reads the file of
    `@/etc/passwd` in it without asking: whoever may chat could do both. Behind it stands another text, then.
    """
    texts = [block.get("text", "") for block in content if block["type"] == "text"]
    if any(text.lstrip().startswith("/") or "@" in text for text in texts):
        return [*content, {"type": "text", "text": CLOSING_TEXT}]
    return list(content)


def _last_session(messages: Sequence[Message], provider: str) -> tuple[int, str | None]:
    """Where this provider has answered last, and in which session."""
    for at in range(len(messages) - 1, -1, -1):
        for part in reversed(messages[at].parts):
            mark = _session_metadata(part)
            if mark.get("provider") == provider and isinstance(mark.get(SESSION_KEY), str):
                return at, mark[SESSION_KEY]
    return -1, None


def _session_metadata(part: Any) -> Mapping[str, Any]:
    if isinstance(part, TextPart | ReasoningPart):
        return (part.provider_metadata or {}).get(FAMILY, {})
    if isinstance(part, ToolPart):
        return (part.call_provider_metadata or {}).get(FAMILY, {})
    return {}


def _write_content(messages: Sequence[Message], written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The blocks of what the user says, behind what others have answered meanwhile."""
    if all(message["role"] == "user" for message in written):
        return [block for message in written for block in message["content"]]
    last = max(at for at, message in enumerate(messages) if message.role == "assistant")
    before = "\n\n".join(text for message in messages[: last + 1] for text in _message_text(message))
    now = [block for message in written[_after_last_answer(written) :] for block in message["content"]]
    said = [block for block in now if block["type"] != "tool_result"]
    return [
        {"type": "text", "text": f"{_HISTORY_HEADING}{before}{_NEW_MESSAGE_HEADING}"},
        *(said or [{"type": "text", "text": CONTINUE_TEXT}]),
    ]


def _after_last_answer(written: Sequence[Mapping[str, Any]]) -> int:
    return max(at for at, message in enumerate(written) if message["role"] == "assistant") + 1


def _message_text(message: Message) -> Iterator[str]:
    """A message in words."""
    if message.role == "system":
        return
    who = "User" if message.role == "user" else "Assistant"
    for part in message.parts:
        if isinstance(part, TextPart) and part.text.strip():
            yield f"{who}: {part.text}"
        elif isinstance(part, ToolPart) and part.state != "input-streaming":
            given = (
                msgspec.json.encode(part.input, enc_hook=mapping_enc_hook).decode()
                if part.input is not msgspec.UNSET
                else "{}"
            )
            yield f"{who} called {part.name} with {given} and got: {tool_result_text(part)}"

"""Write the prompt for Claude Code: the session to resume, and an input line with the new messages.

Claude Code keeps its own history: only what follows its last answer is sent. A conversation for which it has
no session is written as text before the question.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dragoman.messages import Message, ReasoningPart, TextPart, ToolPart
from dragoman.model_request import ModelRequest
from dragoman.wire.anthropic.messages import write_messages
from dragoman.wire.claude_code.decoder import FAMILY, SESSION_KEY
from dragoman.wire.json_codec import encode_body, encode_json
from dragoman.wire.step_splitting import tool_result_text

CONTINUE_TEXT = "Go on."
CLOSING_TEXT = "(The message ends here.)"
_HISTORY_HEADING = "Earlier conversation, from another session:\n\n"
_NEW_MESSAGE_HEADING = "\n\nNew message:"


class ClaudeCodePrompt(msgspec.Struct, frozen=True):
    """`input_line` is written to the CLI's input; `session_id` is the session to resume; `system` has
    instructions.
    """

    input_line: bytes
    session_id: str | None = None
    system: str = ""


def write_prompt(request: ModelRequest, *, provider: str, resume: bool = True) -> ClaudeCodePrompt:
    """Write the prompt for a request. Without `resume` the history is written as text instead."""
    index, session = _last_session(request.messages, provider) if resume else (-1, None)
    new = request.messages[index + 1 :]
    conversation = write_messages(new, instructions=request.instructions, provider=provider)
    system = "\n\n".join(block["text"] for block in conversation.system)
    content = neutralise_commands(_write_content(new, conversation.messages)) or [
        {"type": "text", "text": CONTINUE_TEXT}
    ]
    message = {
        "type": "user",
        "session_id": session or "",
        "message": {"role": "user", "content": content},
        "parent_tool_use_id": None,
    }
    return ClaudeCodePrompt(encode_body(message) + b"\n", session, system)


def neutralise_commands(content: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks such that the CLI reads them as text only.

    The CLI runs a final text such as `/config permissionMode=auto` as a command, and reads the file of
    `@/etc/passwd` without asking: anyone who can chat could do both. Another text after it prevents that.
    """
    texts = [block.get("text", "") for block in content if block["type"] == "text"]
    if any(text.lstrip().startswith("/") or "@" in text for text in texts):
        return [*content, {"type": "text", "text": CLOSING_TEXT}]
    return list(content)


def _last_session(messages: Sequence[Message], provider: str) -> tuple[int, str | None]:
    """Find this provider's last answer, and its session."""
    for index in range(len(messages) - 1, -1, -1):
        for part in reversed(messages[index].parts):
            metadata = _session_metadata(part)
            if metadata.get("provider") == provider and isinstance(metadata.get(SESSION_KEY), str):
                return index, metadata[SESSION_KEY]
    return -1, None


def _session_metadata(part: Any) -> Mapping[str, Any]:
    if isinstance(part, TextPart | ReasoningPart):
        return (part.provider_metadata or {}).get(FAMILY, {})
    if isinstance(part, ToolPart):
        return (part.call_provider_metadata or {}).get(FAMILY, {})
    return {}


def _write_content(messages: Sequence[Message], written: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the blocks of the user's new messages, after a transcript of what others answered meanwhile."""
    if all(message["role"] == "user" for message in written):
        return [block for message in written for block in message["content"]]
    last_answer = max(index for index, message in enumerate(messages) if message.role == "assistant")
    transcript = "\n\n".join(
        text for message in messages[: last_answer + 1] for text in _message_text(message)
    )
    blocks = [block for message in written[_after_last_answer(written) :] for block in message["content"]]
    new_blocks = [block for block in blocks if block["type"] != "tool_result"]
    return [
        {"type": "text", "text": f"{_HISTORY_HEADING}{transcript}{_NEW_MESSAGE_HEADING}"},
        *(new_blocks or [{"type": "text", "text": CONTINUE_TEXT}]),
    ]


def _after_last_answer(written: Sequence[Mapping[str, Any]]) -> int:
    return max(index for index, message in enumerate(written) if message["role"] == "assistant") + 1


def _message_text(message: Message) -> Iterator[str]:
    """Return a message as text."""
    if message.role == "system":
        return
    speaker = "User" if message.role == "user" else "Assistant"
    for part in message.parts:
        if isinstance(part, TextPart) and part.text.strip():
            yield f"{speaker}: {part.text}"
        elif isinstance(part, ToolPart) and part.state != "input-streaming":
            arguments = encode_json(part.input) if part.input is not msgspec.UNSET else "{}"
            yield f"{speaker} called {part.name} with {arguments} and got: {tool_result_text(part)}"

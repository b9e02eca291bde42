"""Anthropic requests as Claude Code sends them: cache breakpoints, tools, thinking, calls and images."""

from __future__ import annotations

from typing import Any

import msgspec

SIGNATURE = "EqQBCgIYAhIkNGFi/+" * 12 + "=="
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
MARK = {"type": "ephemeral"}
LONG_MARK = {"type": "ephemeral", "ttl": "1h"}

NAMES = (
    "Task",
    "Bash",
    "Glob",
    "Grep",
    "LS",
    "ExitPlanMode",
    "Read",
    "Edit",
    "MultiEdit",
    "Write",
    "NotebookEdit",
    "WebFetch",
    "TodoWrite",
    "WebSearch",
    "BashOutput",
    "KillBash",
    "ListMcpResources",
    "ReadMcpResource",
    "mcp__github__search",
    "mcp__browser__click",
)


def tool(name: str) -> dict[str, Any]:
    """A tool as Claude Code describes it."""
    return {
        "name": name,
        "description": f"{name}: does what its name says.\n\nUsage notes:\n- be careful",
        "input_schema": {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"target": {"type": "string"}, "limit": {"type": "number"}},
            "required": ["target"],
            "additionalProperties": False,
        },
    }


def use(id: str, name: str, **input: Any) -> dict[str, Any]:
    """A tool call."""
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str, content: Any, **beside: Any) -> dict[str, Any]:
    """A call's result."""
    return {"type": "tool_result", "tool_use_id": id, "content": content, **beside}


def image() -> dict[str, Any]:
    """A small image."""
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}


def claude_code() -> dict[str, Any]:
    """A turn with calls and results."""
    return {
        "model": "claude-opus-5",
        "max_tokens": 32000,
        "stream": True,
        "temperature": 1,
        "metadata": {"user_id": "user_1_account_2_session_3"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "system": [
            {"type": "text", "text": "You are Claude Code.", "cache_control": MARK},
            {"type": "text", "text": "Be concise.\n<env>linux</env>", "cache_control": LONG_MARK},
        ],
        "tools": [*map(tool, NAMES[:-1]), {**tool(NAMES[-1]), "cache_control": MARK}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "<system-reminder>today is Monday</system-reminder>"},
                    {"type": "text", "text": "What is in shot.png and a.txt?", "cache_control": MARK},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look at both.", "signature": SIGNATURE},
                    {"type": "redacted_thinking", "data": "cmVkYWN0ZWQ="},
                    {"type": "text", "text": "I look."},
                    use("toolu_01", "Read", target="shot.png"),
                    use("toolu_02", "Read", target="a.txt"),
                    use("toolu_03", "Bash", target="ls"),
                ],
            },
            {
                "role": "user",
                "content": [
                    result("toolu_02", "1\tHello"),
                    result("toolu_01", [{"type": "text", "text": "shot.png:"}, image()]),
                    result("toolu_03", "<error>denied</error>", is_error=True, cache_control=MARK),
                    {"type": "text", "text": "Go on."},
                ],
            },
            {"role": "assistant", "content": [use("toolu_04", "Grep", target="x")]},
            {"role": "user", "content": [{**result("toolu_04", ""), "cache_control": MARK}]},
        ],
    }


def asking(**fields: Any) -> bytes:
    """A small request with these fields."""
    small = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hi"}]}
    return msgspec.json.encode(
        {name: value for name, value in {**small, **fields}.items() if value is not None}
    )


def saying(*blocks: Any, role: str = "user") -> bytes:
    """A request with these blocks in its only message."""
    return asking(messages=[{"role": role, "content": list(blocks)}])

"""A stand-in for Claude Code's CLI: speaks its documented stream, as the environment's CLAUDE_PLAY says.

It writes what it was started with, and told, into CLAUDE_SEEN, one JSON document a line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SESSION = "0f3a2c1e-5b7d-4a31-9c62-1f0e8a7b6c5d"
USAGE = {
    "input_tokens": 10,
    "cache_creation_input_tokens": 200,
    "cache_read_input_tokens": 3000,
    "output_tokens": 40,
}


def say(type: str, **fields: Any) -> None:
    print(json.dumps({"type": type, "session_id": SESSION, "uuid": "u", **fields}), flush=True)


def piece(**event: Any) -> None:
    say("stream_event", event=event, parent_tool_use_id=None)


def block(index: int, kind: dict[str, Any], *deltas: dict[str, Any]) -> None:
    piece(type="content_block_start", index=index, content_block=kind)
    for delta in deltas:
        piece(type="content_block_delta", index=index, delta=delta)
    piece(type="content_block_stop", index=index)


def text(index: int, *pieces: str) -> None:
    deltas = ({"type": "text_delta", "text": piece} for piece in pieces)
    block(index, {"type": "text", "text": ""}, *deltas)


def begin(id: str) -> None:
    message = {"id": id, "type": "message", "role": "assistant", "model": "claude-sonnet-5", "content": []}
    piece(type="message_start", message={**message, "usage": {"input_tokens": 3, "output_tokens": 1}})


def end(reason: str) -> None:
    piece(type="message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 9})
    piece(type="message_stop")


def whole(id: str, *content: dict[str, Any], **more: Any) -> None:
    message = {"id": id, "role": "assistant", "model": "claude-sonnet-5", "content": list(content)}
    say("assistant", message=message | more.pop("message", {}), **{"parent_tool_use_id": None, **more})


def outcome(id: str, content: Any, **more: Any) -> None:
    result = {"type": "tool_result", "tool_use_id": id, "content": content, **more}
    say("user", message={"role": "user", "content": [result]}, parent_tool_use_id=None)


def result(subtype: str = "success", **fields: Any) -> None:
    told = {"is_error": subtype != "success", "duration_ms": 900, "duration_api_ms": 800, "num_turns": 2}
    say("result", subtype=subtype, **{**told, "usage": USAGE, "total_cost_usd": 0.0123, **fields})


def init() -> None:
    say("system", subtype="init", model="claude-sonnet-5", tools=["Read", "Bash"], apiKeySource="none")


def answer() -> None:
    """Thinks, reads a file, runs a command that fails, says what it found."""
    init()
    say("system", subtype="status", status="requesting")
    begin("msg_1")
    thought = {"type": "thinking_delta", "thinking": "A file."}
    signed = {"type": "signature_delta", "signature": "sig"}
    block(0, {"type": "thinking", "thinking": "", "signature": ""}, thought, signed)
    text(1, "I look ", "at it.")
    use = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    block(
        2, use, *({"type": "input_json_delta", "partial_json": part} for part in ('{"file_path"', ':"/a"}'))
    )
    whole("msg_1", {"type": "text", "text": "I look at it."})
    whole("msg_1", {**use, "input": {"file_path": "/a"}})
    end("tool_use")
    outcome("toolu_1", [{"type": "text", "text": "one\ntwo"}])
    begin("msg_2")
    block(0, {"type": "tool_use", "id": "toolu_2", "name": "Bash", "input": {}})
    end("tool_use")
    whole("msg_9", {"type": "text", "text": "a sub-agent speaks"}, parent_tool_use_id="toolu_2")
    outcome("toolu_2", "no such command", is_error=True)
    begin("msg_3")
    text(0, "Two lines.")
    end("end_turn")
    whole("msg_3", {"type": "text", "text": "Two lines."})
    result(result="Two lines.", stop_reason="end_turn")


def plain() -> None:
    """As without partial messages, with noise between the lines."""
    print("Warning: a newer version is there", flush=True)
    init()
    print('{"type": "assis', flush=True)
    print("[1, 2]\n\n", flush=True)
    whole("msg_1", {"type": "text", "text": "Whole."})
    say("rate_limit_event", rate_limit_info={"status": "allowed"})
    result(result="Whole.")


def hang() -> None:
    """Starts a command that heeds no signal but the last, and says no more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    init()
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code])
    begin("msg_1")
    text(0, f"{os.getpid()} {child.pid}")
    time.sleep(600)


def logged_out() -> None:
    """Has no key."""
    init()
    words = "Invalid API key · Please run /login"
    said = {"type": "text", "text": words}
    whole("msg_1", said, error="authentication_failed", message={"model": "<synthetic>"})
    result(is_error=True, result=words, total_cost_usd=0)


def busy() -> None:
    """The API is overloaded, as the CLI tells it."""
    init()
    result(is_error=True, result="API Error: 529 Overloaded", api_error_status=529)


def exhausted() -> None:
    """Took all the turns that it may."""
    init()
    begin("msg_1")
    block(0, {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}})
    end("tool_use")
    result("error_max_turns")


def spent() -> None:
    """Its own budget is spent."""
    init()
    result("error_max_budget_usd", errors=["Reached maximum budget ($0.01)"])


def crash() -> None:
    """Ends in the middle, and says why on its error output."""
    init()
    begin("msg_1")
    piece(type="content_block_start", index=0, content_block={"type": "text", "text": "Hal"})
    print("TypeError: cannot read ANTHROPIC key sk-ant-api03-abcdefghijklmnop", file=sys.stderr, flush=True)
    sys.exit(3)


def again() -> None:
    """Its API broke off in the middle of a message, and it asked again."""
    init()
    begin("msg_1")
    piece(type="content_block_start", index=0, content_block={"type": "text", "text": "Hal"})
    piece(type="content_block_start", index=1, content_block={"type": "tool_use", "id": "t", "name": "Bash"})
    begin("msg_2")
    text(0, "Hello")
    end("end_turn")
    result()


def lost() -> None:
    """Knows no session."""
    if any(argument.startswith("--resume=") for argument in sys.argv):
        print(f"No conversation found with session ID: {SESSION}", file=sys.stderr, flush=True)
        sys.exit(1)
    plain()


PLAYS = (answer, plain, hang, logged_out, busy, exhausted, spent, crash, again, lost)


def main() -> None:
    told = [json.loads(line) for line in sys.stdin]
    seen = {"argv": sys.argv[1:], "told": told, "cwd": str(Path.cwd()), "environ": sorted(os.environ)}
    with Path(os.environ["CLAUDE_SEEN"]).open("a") as file:
        file.write(json.dumps(seen) + "\n")
    next(play for play in PLAYS if play.__name__ == os.environ["CLAUDE_PLAY"])()


if __name__ == "__main__":
    main()

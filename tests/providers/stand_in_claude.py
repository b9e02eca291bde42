"""A stand-in for Claude Code's CLI, driven by the variable CLAUDE_PLAY.

The order of lines, and how it starts commands, are those that were seen of version 2.1.197. It writes what it
was started with, and told, into CLAUDE_SEEN, one JSON document a line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # as `typing` has it, which is not loaded: the tests start a hundred of these
if TYPE_CHECKING:
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
    records = {"is_error": subtype != "success", "duration_ms": 900, "duration_api_ms": 800, "num_turns": 2}
    say("result", subtype=subtype, **{**records, "usage": USAGE, "total_cost_usd": 0.0123, **fields})


def init() -> None:
    agents = ["Explore", "engine-worker"]
    say("system", subtype="init", model="claude-sonnet-5", tools=["Read", "Bash"], agents=agents)


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
    """Starts commands in sessions of their own, that heed no signal but the last, and says no more."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    init()
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    run = [sys.executable, "-c", code]
    import subprocess  # late: most tests do not need it

    near, far = (subprocess.Popen(run, start_new_session=away) for away in (False, True))
    begin("msg_1")
    text(0, f"{os.getpid()} {near.pid} {far.pid}")
    time.sleep(600)


def logged_out() -> None:
    """Has no key."""
    init()
    words = "Invalid API key · Please run /login"
    reply = {"type": "text", "text": words}
    whole("msg_1", reply, error="authentication_failed", message={"model": "<synthetic>"})
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
    """Its API stopped in the middle of a message, and it asked again."""
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
        words = f"No conversation found with session ID: {SESSION}"
        print(words, file=sys.stderr, flush=True)
        result("error_during_execution", errors=[words], num_turns=0)
        sys.exit(1)
    plain()


def early() -> None:
    """Runs calls as soon as they are whole: what they give comes before the message's end."""
    init()
    begin("msg_1")
    for index, fields in enumerate(({"command": "no"}, {"command": "ls"})):
        use = {"type": "tool_use", "id": f"toolu_{index}", "name": "Bash", "input": {}}
        piece(type="content_block_start", index=index, content_block=use)
        arguments = {"type": "input_json_delta", "partial_json": json.dumps(fields)}
        piece(type="content_block_delta", index=index, delta=arguments)
        whole("msg_1", {**use, "input": fields})
        outcome(f"toolu_{index}", f"ran {fields['command']}", is_error=not index)
        piece(type="content_block_stop", index=index)
    end("tool_use")
    begin("msg_2")
    text(0, "Done.")
    end("end_turn")
    result(stop_reason="end_turn")


def background() -> None:
    """Starts a command in the background, answers, waits for it, and answers again."""
    init()
    begin("msg_1")
    say("system", subtype="task_started", task_id="b1", task_type="local_bash")
    text(0, "It runs.")
    end("end_turn")
    result(stop_reason="end_turn", num_turns=2, **counted(10, 0.01))
    say("system", subtype="task_updated", task_id="b1", patch={"status": "completed"})
    say("system", subtype="task_notification", task_id="b1", status="completed")
    init()
    begin("msg_2")
    text(0, "It ended.")
    end("end_turn")
    result(stop_reason="end_turn", num_turns=1, **counted(30, 0.03))


def counted(tokens: int, cost: float) -> dict[str, Any]:
    """What the process used so far, with a second model's part."""
    cached = {"cacheReadInputTokens": 5, "cacheCreationInputTokens": 1}
    each = {"inputTokens": tokens, "outputTokens": 2, **cached}
    return {"total_cost_usd": cost, "modelUsage": {"claude-sonnet-5": each, "claude-haiku-4-5": each}}


def left() -> None:
    """Ends a command in the background that takes too long, and says no more."""
    init()
    begin("msg_1")
    say("system", subtype="task_started", task_id="b1", task_type="local_bash")
    text(0, "It runs.")
    end("end_turn")
    result(stop_reason="end_turn")
    say("system", subtype="task_updated", task_id="b1", patch={"status": "killed"})


def long() -> None:
    """Wrote as much as it may."""
    init()
    begin("msg_1")
    text(0, "Long")
    end("max_tokens")
    words = {"type": "text", "text": "API Error: the response exceeded the output token maximum"}
    whole("m", words, error="max_output_tokens", message={"model": "<synthetic>"})
    result(is_error=True, result=words["text"], stop_reason="stop_sequence")


def refused() -> None:
    """The model would not."""
    init()
    begin("msg_1")
    text(0, "No")
    words = {"type": "text", "text": "API Error: unable to respond to this request"}
    whole("m", words, error="invalid_request", message={"model": "<synthetic>"})
    end("refusal")
    result(is_error=True, result=words["text"], stop_reason="refusal")


def cut() -> None:
    """Its API stopped in the middle of a call; the CLI calls that a success."""
    init()
    begin("msg_1")
    text(0, "Half")
    use = {"type": "tool_use", "id": "t", "name": "Bash"}
    piece(type="content_block_start", index=1, content_block=use)
    result(result="Half", stop_reason=None)


def forbidden() -> None:
    """May not run in this mode."""
    print("--dangerously-skip-permissions cannot be used with root privileges", file=sys.stderr, flush=True)
    sys.exit(1)


def lent() -> None:
    """Calls a tool that it was lent, as it is listed, over MCP; and one that there is not."""
    name, headers = agent_tool_server()
    url = headers.pop("url")
    hello = {"protocolVersion": "2025-11-25", "capabilities": {"elicitation": {}}, "clientInfo": CLIENT}
    opened = ask(url, headers, "initialize", hello)[0]
    headers |= {"mcp-protocol-version": "2025-11-25", "mcp-session-id": opened["mcp-session-id"]}
    ask(url, headers, "notifications/initialized", None)
    tools = ask(url, headers, "tools/list", {})[1]["result"]["tools"]
    init()
    begin("msg_1")
    text(0, " ".join(sorted(tool["name"] for tool in tools)))
    value = json.loads(os.environ.get("CLAUDE_INPUT") or '{"a": 2, "b": 2}')
    use = {"type": "tool_use", "id": "toolu_1", "name": f"mcp__{name}__{tools[0]['name']}"}
    block(1, {**use, "input": {}}, {"type": "input_json_delta", "partial_json": json.dumps(value)})
    whole("msg_1", {**use, "input": value})
    meta = {"claudecode/toolUseId": "toolu_1", "progressToken": 2}
    call = {"name": tools[0]["name"], "arguments": value, "_meta": meta}
    reply = ask(url, headers, "tools/call", call)[1]["result"]
    end("tool_use")
    outcome("toolu_1", reply["content"], is_error=reply.get("isError", False))
    begin("msg_2")
    text(0, "Done.")
    end("end_turn")
    result(stop_reason="end_turn")


CLIENT = {"name": "claude-code", "version": "2.1.197"}


def agent_tool_server() -> tuple[str, dict[str, str]]:
    """The server that it was lent tools by: the last that it was given."""
    files = [argument.split("=", 1)[1] for argument in sys.argv if argument.startswith("--mcp-config=")]
    [(name, server)] = json.loads(Path(files[-1]).read_text())["mcpServers"].items()
    return name, {"url": server["url"], **server["headers"]}


def ask(url: str, headers: dict[str, str], method: str, params: Any) -> tuple[Any, Any]:
    """The headers and the message that a request over MCP is answered with."""
    import urllib.request  # late: loads all of HTTP and TLS, which most tests do not need

    message = {"jsonrpc": "2.0", "method": method, "params": params or {}}
    body = json.dumps(message if method.startswith("notifications/") else {**message, "id": 1})
    accept = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    request = urllib.request.Request(url, body.encode(), {**headers, **accept})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        lines = answer.read().decode().replace("data: ", "").splitlines()
    records = [json.loads(line) for line in lines if line.startswith("{")]
    return answer.headers, next((each for each in records if "id" in each), None)


PLAYS = (
    *(answer, plain, hang, logged_out, busy, exhausted, spent, crash, again, lost),
    *(early, background, left, long, refused, cut, forbidden, lent),
)


def main() -> None:
    records = [json.loads(line) for line in sys.stdin]
    seen: dict[str, Any] = {
        "argv": sys.argv[1:],
        "told": records,
        "cwd": str(Path.cwd()),
        "environ": sorted(os.environ),
    }
    seen["files"] = [
        Path(argument.split("=", 1)[1]).read_text()
        for argument in sys.argv[1:]
        if argument.startswith(("--append-system-prompt-file=", "--mcp-config="))
    ]
    with Path(os.environ["CLAUDE_SEEN"]).open("a") as file:
        file.write(json.dumps(seen) + "\n")
    next(play for play in PLAYS if play.__name__ == os.environ["CLAUDE_PLAY"])()


if __name__ == "__main__":
    main()

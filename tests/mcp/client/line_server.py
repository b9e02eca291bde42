"""An MCP server of the standard library that writes the lines it is told to: `line_server.py [TOOLS_FILE]`.

The tool `write` writes its `lines` to stdout, and its `errors` to stderr, `times` times; `$ID` in a line is
the request's id, `$TOKEN` its progress token. Then it answers, unless `answer` is false. TOOLS_FILE holds the
JSON text of further tools.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TYPE_CHECKING = False  # as `typing` has it, which takes as long to load as the rest
if TYPE_CHECKING:
    from typing import Any

PLAIN = {"type": "object", "properties": {}}
TOOLS = [
    {"name": "echo", "inputSchema": PLAIN},
    {"name": "write", "inputSchema": PLAIN},
    {"name": "look", "inputSchema": PLAIN, "annotations": {"readOnlyHint": True}},
]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def answer(id: Any, result: Any) -> None:
    say(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}))


def list_tools(id: Any) -> None:
    more = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else ""
    listed = ",".join([*(json.dumps(tool) for tool in TOOLS), *([more] if more else [])])
    say(f'{{"jsonrpc": "2.0", "id": {json.dumps(id)}, "result": {{"tools": [{listed}]}}}}')


def write(id: Any, params: dict[str, Any]) -> None:
    wanted = params.get("arguments", {})
    names = {"$ID": json.dumps(id), "$TOKEN": json.dumps(params.get("_meta", {}).get("progressToken"))}
    lines = [*wanted.get("lines", ())]
    for name, value in names.items():
        lines = [line.replace(name, value) for line in lines]
    for _ in range(wanted.get("times", 1)):
        for line in lines:
            sys.stdout.write(line + "\n")
        for line in wanted.get("errors", ()):
            sys.stderr.write(line + "\n")
    sys.stdout.flush()
    sys.stderr.flush()
    if wanted.get("answer", True):
        answer(id, {"content": [{"type": "text", "text": "written"}]})


def handle(message: dict[str, Any]) -> None:
    id, method, params = message.get("id"), message.get("method"), message.get("params", {})
    if method == "initialize":
        info = {"name": "lines", "version": "1"}
        offers = {"tools": {"listChanged": True}}
        answer(id, {"protocolVersion": "2025-06-18", "capabilities": offers, "serverInfo": info})
    elif method == "tools/list":
        list_tools(id)
    elif method == "tools/call" and params["name"] == "write":
        write(id, params)
    elif method == "tools/call":
        answer(id, {"content": [{"type": "text", "text": json.dumps(params.get("arguments", {}))}]})
    elif id is not None and method:
        say(json.dumps({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": f"no {method}"}}))


if __name__ == "__main__":
    for received in sys.stdin:
        handle(json.loads(received))

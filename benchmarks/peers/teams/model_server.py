"""A scripted model for teams, over OpenAI's chat.completions. It prints its port, and serves until it ends.

The manager asks three members, each in the way of the library that is measured (the model's name says which),
and then answers; a member answers at once. Nothing but the standard library, in a process of its own.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

MEMBERS = ("ann", "bob", "cid")
TASK = "Write one sentence on tea."
ANSWER = "Tea is brewed."
DONE = "All three have written."
HANGS = "hang"
"""The name of a model that does not answer; `chain-NAME` asks the team NAME, and then answers."""
Json = dict[str, Any]


def calls_of(style: str) -> Sequence[tuple[str, Json]]:
    """The calls by which the manager of a library asks its members."""
    match style:
        case "dragoman":
            return [("teams_ask", {"teams": list(MEMBERS), "question": TASK})]
        case "agno":
            return [("delegate_task_to_member", {"member_id": name, "task": TASK}) for name in MEMBERS]
        case _:
            return [
                ("delegate_work_to_coworker", {"coworker": name, "task": TASK, "context": "None."})
                for name in MEMBERS
            ]


def reply(body: Mapping[str, Any]) -> Json:
    """The message that the model answers a request with."""
    role, _, style = str(body["model"]).rpartition("/")[2].partition("-")
    if role not in ("manager", "chain"):
        return {"role": "assistant", "content": ANSWER}
    offered = {tool["function"]["name"] for tool in body.get("tools") or ()}
    ask_next = [("teams_ask", {"teams": [style], "question": TASK})]
    calls = ask_next if role == "chain" else calls_of(style)
    if any(message["role"] == "tool" for message in body["messages"]) or not offered:
        return {"role": "assistant", "content": DONE}
    missing = {name for name, _ in calls} - offered
    assert not missing, f"the library does not offer {missing}, but {offered}"
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": f"call_{number}",
                "index": number,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(input)},
            }
            for number, (name, input) in enumerate(calls)
        ],
    }


def document(body: Mapping[str, Any]) -> bytes:
    """The whole answer, or its stream, as the request asks."""
    message = reply(body)
    reason = "tool_calls" if message.get("tool_calls") else "stop"
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    common = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
    if not body.get("stream"):
        choice = {"index": 0, "message": message, "finish_reason": reason}
        answer = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
        return response(json.dumps(answer).encode(), "application/json")
    chunks: list[Json] = [
        {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
        {"choices": [], "usage": usage},
    ]
    frames = [{**common, "object": "chat.completion.chunk", **chunk} for chunk in chunks]
    text = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"
    return response(text.encode(), "text/event-stream")


def response(body: bytes, kind: str) -> bytes:
    """An HTTP response."""
    return f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = next(
                (int(line[15:]) for line in head.split("\r\n") if line.startswith("content-length:")), 0
            )
            body = await reader.readexactly(length)
            wanted = json.loads(body)
            if wanted["model"] == HANGS:
                await asyncio.sleep(600)
            writer.write(document(wanted))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    """Serve on a free port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())

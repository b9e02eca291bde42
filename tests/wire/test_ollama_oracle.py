"""Ollama's own client reads the same from regular streams as our decoder."""

from __future__ import annotations

from typing import Any

import pytest
from ollama import AsyncClient, ResponseError

from dragoman import events as e
from tests.providers.servers import Peer, serving

from .ollama_streams import STREAMS, call, decode, last, line, ndjson
from .openai_streams import cut, cuts

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\nconnection: close\r\n\r\n"
BEHAVED = ["text", "thinking", "calls", "old calls", "all in one", "cut", "load"]
LONG = ndjson(
    *(line(thinking=f" thöught{number}") for number in range(300)),
    *(line(f" wörd{number}🦜") for number in range(300)),
    line(tool_calls=[call("f", {"words": [f"\u2028<{number}>" for number in range(300)]})]),
    last(),
)


def ours(raw: bytes) -> dict[str, Any]:
    answer = decode(cut(raw, cuts(raw, 7)))
    assert answer.finish is not None
    usage = answer.finish.usage or e.Usage()
    reason = answer.finish.finish_reason
    return {
        "thinking": "".join(event.delta for event in answer.events if isinstance(event, e.ReasoningDelta)),
        "text": "".join(event.delta for event in answer.events if isinstance(event, e.TextDelta)),
        "calls": [
            (event.tool_name, event.input)
            for event in answer.events
            if isinstance(event, e.ToolInputAvailable)
        ],
        "stopped": reason in ("stop", "tool-calls"),
        "model": answer.finish.model,
        "input": usage.input_tokens,
        "output": usage.output_tokens,
    }


async def theirs(raw: bytes) -> dict[str, Any]:
    async def script(peer: Peer) -> None:
        await peer.request()
        for data in [HEAD, *cut(raw, cuts(raw, 3))]:
            await peer.send(data)

    summary: dict[str, Any] = {"thinking": "", "text": "", "calls": []}
    async with serving(script) as server:
        client = AsyncClient(host=server.url, trust_env=False)
        async for part in await client.chat(model="m", messages=[], stream=True):
            summary["thinking"] += part.message.thinking or ""
            summary["text"] += part.message.content or ""
            summary["calls"] += [
                (one.function.name, dict(one.function.arguments)) for one in part.message.tool_calls or ()
            ]
            summary["stopped"] = part.done_reason in ("stop", "load")
            summary |= {"model": part.model, "input": part.prompt_eval_count, "output": part.eval_count}
    return summary


@pytest.mark.parametrize("raw", [*(STREAMS[name] for name in BEHAVED), LONG], ids=[*BEHAVED, "long"])
async def test_ollamas_client_reads_the_same_answer(raw: bytes) -> None:
    assert ours(raw) == await theirs(raw)


async def test_ollamas_client_and_ours_both_report_an_error_in_the_stream() -> None:
    with pytest.raises(ResponseError) as caught:
        await theirs(STREAMS["error"])
    failure = decode([STREAMS["error"]]).failure
    assert failure is not None
    assert caught.value.error == failure.message

"""The work that every server is given, as data: what is asked, how much, and what an answer must hold."""

from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from typing import Literal

Dialect = Literal["openai", "ui"]
Measure = Literal["chunks", "turns", "memory", "first"]

UNITS: dict[Measure, str] = {
    "chunks": "chunks per CPU-second of the server, more is better",
    "turns": "turns per CPU-second of the server, more is better",
    "memory": "KiB a stream, less is better",
    "first": "µs to the first chunk (p50), less is better",
}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One request body and how many chunks its answer must have."""

    body: str
    chunks: int


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One test. Times are seconds; `pace` is chunks a second in each stream, 0 as many as fit.

    Where connections are opened at a pace, `warmup` is the longest time until all are open.
    """

    name: str
    group: Literal["stream", "turns", "memory", "first"]
    title: str
    measure: Measure
    chunks: int
    connections: int
    pace: int = 0
    tool_steps: int = 0
    opened_per_second: int = 0
    warmup: float = 1.5
    seconds: float = 3.0

    @property
    def model(self) -> str:
        """The model name that makes the upstream behave so."""
        return f"bench-n{self.chunks}-r{self.pace}-tool{self.tool_steps}"

    def asks(self, dialect: Dialect) -> Sequence[Ask]:
        """What a connection sends, in turn, for one unit of work.

        Whoever speaks `ui` runs the tool calls; behind a relay it is the client who asks for each step.
        """
        if dialect == "ui":
            return [Ask(body=_ui_body(), chunks=self.chunks)]
        first = [
            Ask(body=_openai_body(self.model, results=step), chunks=0) for step in range(self.tool_steps)
        ]
        return [*first, Ask(body=_openai_body(self.model, results=self.tool_steps), chunks=self.chunks)]


def workloads(*, pace: int, quick: bool) -> Sequence[Workload]:
    """All tests, in the order in which they run; `pace` is that of the memory test."""
    seconds = 1.0 if quick else 3.0
    period = 2.5 if quick else 5.0  # of a paced answer: the window holds each stream's end and beginning once
    return [
        Workload(
            name="unpaced",
            group="stream",
            title="OpenAI chunks to AI SDK frames, unpaced: 16 connections, 200 chunks an answer",
            measure="chunks",
            chunks=200,
            connections=16,
            seconds=seconds,
        ),
        Workload(
            name="paced",
            group="stream",
            title="the same, paced: 200 streams at 20 chunks a second",
            measure="chunks",
            chunks=int(20 * period),
            connections=200,
            pace=20,
            opened_per_second=200,
            warmup=8.0,
            seconds=period,
        ),
        Workload(
            name="turns",
            group="turns",
            title="agent turns of two steps with one tool call, 20 chunks of text: 32 connections",
            measure="turns",
            chunks=20,
            connections=32,
            tool_steps=1,
            seconds=seconds,
        ),
        Workload(
            name="memory",
            group="memory",
            title=f"memory an open stream: from 100 to 1,000 streams at {pace}/s",
            measure="memory",
            chunks=1000 * pace,
            connections=1000,
            pace=pace,
            opened_per_second=300,
            warmup=20.0,
        ),
        Workload(
            name="first",
            group="first",
            title="time to the first chunk, one connection, one chunk an answer",
            measure="first",
            chunks=1,
            connections=1,
            seconds=seconds,
        ),
    ]


def _ui_body() -> str:
    message = {"id": "m-%ID%", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    return dumps({"id": "s-%ID%", "trigger": "submit-message", "messages": [message]})


def _openai_body(model: str, *, results: int) -> str:
    call = {"id": "call_1", "type": "function", "function": {"name": "hub_call", "arguments": "{}"}}
    exchange = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "[]"},
    ]
    messages = [{"role": "user", "content": "hello"}, *exchange * results]
    return dumps({"model": model, "stream": True, "messages": messages})

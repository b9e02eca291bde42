"""What every gateway is given, as data: which door, which upstream behind it, and how much."""

from collections.abc import Sequence
from dataclasses import dataclass
from json import dumps
from typing import Literal

Family = Literal["openai", "anthropic"]
Measure = Literal["requests", "chunks", "latency", "memory", "cold"]
Group = Literal["json", "relay", "translate", "latency", "memory", "cold"]

GROUPS: Sequence[Group] = ("json", "relay", "translate", "latency", "memory", "cold")
UNITS: dict[Measure, str] = {
    "requests": "requests per CPU-second of the gateway, more is better",
    "chunks": "chunks per CPU-second of the gateway, more is better",
    "latency": "µs that the gateway adds to the median answer, less is better",
    "memory": "KiB a stream, less is better",
    "cold": "seconds from the start of the process to its first whole answer, less is better",
}
QUESTION = "What is the capital of France, and why is it there? Answer in one sentence, please."


@dataclass(frozen=True, kw_only=True)
class Task:
    """One test. Times are seconds; `pace` is chunks a second in each stream, 0 as many as fit.

    Where connections are opened at a pace, `warmup` is the longest time until all are open.
    """

    name: str
    group: Group
    title: str
    measure: Measure
    door: Family = "openai"
    upstream: Family = "openai"
    stream: bool = False
    chunks: int = 1
    connections: int = 1
    pace: int = 0
    opened_per_second: int = 0
    warmup: float = 1.0
    seconds: float = 3.0

    @property
    def model(self) -> str:
        """The model name that makes the upstream behave so."""
        return f"bench-n{self.chunks}-r{self.pace}"

    @property
    def last_words(self) -> str:
        """What a whole answer ends with."""
        if not self.stream:
            return "}"
        return "[DONE]" if self.door == "openai" else "message_stop"

    @property
    def path(self) -> str:
        """The door's address, as its official clients ask it."""
        return "/v1/chat/completions" if self.door == "openai" else "/v1/messages"

    def body(self, model: str) -> str:
        """The request, for a gateway that calls the model so."""
        head = {"model": model, "stream": True} if self.stream else {"model": model}
        limit = {"max_tokens": 1000}
        return dumps({**head, **limit, "messages": [{"role": "user", "content": QUESTION}]})


def tasks(*, streams: int, pace: int, quick: bool) -> Sequence[Task]:
    """All tests, in the order in which they run; `streams` and `pace` are those of the memory test."""
    seconds = 1.0 if quick else 3.0
    return [
        Task(
            name="json",
            group="json",
            title="JSON in, JSON out: 16 connections",
            measure="requests",
            connections=16,
            seconds=seconds,
        ),
        _unpaced("relay", "relay", title="OpenAI stream passed on", seconds=seconds),
        _paced("relay-paced", "relay", title="OpenAI stream passed on", quick=quick),
        _unpaced(
            "to-anthropic",
            "translate",
            title="OpenAI client, Anthropic upstream",
            upstream="anthropic",
            seconds=seconds,
        ),
        _paced(
            "to-anthropic-paced",
            "translate",
            title="OpenAI client, Anthropic upstream",
            upstream="anthropic",
            quick=quick,
        ),
        _unpaced(
            "to-openai",
            "translate",
            title="Anthropic client, OpenAI upstream",
            door="anthropic",
            seconds=seconds,
        ),
        _paced(
            "to-openai-paced",
            "translate",
            title="Anthropic client, OpenAI upstream",
            door="anthropic",
            quick=quick,
        ),
        Task(
            name="latency",
            group="latency",
            title="latency, JSON in, JSON out, one connection",
            measure="latency",
            seconds=seconds,
        ),
        Task(
            name="latency-first",
            group="latency",
            title="latency to a stream's first chunk, one connection, one chunk an answer",
            measure="latency",
            stream=True,
            seconds=seconds,
        ),
        Task(
            name="memory",
            group="memory",
            title=f"memory an open stream: from {streams // 10} to {streams:,} streams at {pace}/s",
            measure="memory",
            stream=True,
            chunks=1000 * pace,
            connections=streams,
            pace=pace,
            opened_per_second=400,
            warmup=60.0,
        ),
        Task(name="cold", group="cold", title="cold start to ready", measure="cold"),
    ]


def _unpaced(
    name: str,
    group: Group,
    *,
    title: str,
    seconds: float,
    door: Family = "openai",
    upstream: Family = "openai",
) -> Task:
    return Task(
        name=name,
        group=group,
        title=f"{title}, unpaced: 16 connections, 200 chunks an answer",
        measure="chunks",
        door=door,
        upstream=upstream,
        stream=True,
        chunks=200,
        connections=16,
        seconds=seconds,
    )


def _paced(
    name: str,
    group: Group,
    *,
    title: str,
    quick: bool,
    door: Family = "openai",
    upstream: Family = "openai",
) -> Task:
    period = 2.5 if quick else 5.0  # of an answer: the window holds each stream's end and beginning once
    return Task(
        name=name,
        group=group,
        title=f"{title}, paced: 200 streams at 20 chunks a second",
        measure="chunks",
        door=door,
        upstream=upstream,
        stream=True,
        chunks=int(20 * period),
        connections=200,
        pace=20,
        opened_per_second=200,
        warmup=10.0,
        seconds=period,
    )

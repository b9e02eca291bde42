"""A pool: tools, and queries of which it is known which tools they want. And the file format for pools."""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

NO_NAMESPACE = "pool"
MOST_QUERIES = 1_000


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A tool as its set has it; names are as operations may have them, and differ within a pool."""

    name: str
    description: str = ""
    schema: Mapping[str, Any]
    namespace: str = NO_NAMESPACE


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked, and the places in the pool of the tools that answer it."""

    text: str
    gold: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Pool:
    """A set of tools and queries."""

    name: str
    tools: Sequence[Tool]
    queries: Sequence[Query]


def gather(
    name: str, tools: Iterable[tuple[str, Tool]], queries: Iterable[tuple[str, Iterable[str]]]
) -> Pool:
    """A pool of tools by key and of queries that name keys; queries that name a missing one are left out.

    Of more than a thousand queries a sample is taken, the same each time.
    """
    places: dict[str, int] = {}
    distinct: list[Tool] = []
    taken: set[str] = set()
    for key, tool in tools:
        if key not in places:
            places[key] = len(distinct)
            distinct.append(_own_name(tool, taken))
    records = [(text, tuple(wanted)) for text, wanted in queries]
    usable = [
        Query(text=text, gold=frozenset(places[key] for key in wanted))
        for text, wanted in records
        if wanted and all(key in places for key in wanted)
    ]
    if len(usable) > MOST_QUERIES:
        usable = random.Random(7).sample(usable, MOST_QUERIES)
    return Pool(name=name, tools=distinct, queries=usable)


def _own_name(tool: Tool, taken: set[str]) -> Tool:
    """The tool under names that an operation may have and that no other one has."""
    namespace = re.sub(r"[^A-Za-z0-9_-]+", "_", tool.namespace).strip("_-")[:64] or NO_NAMESPACE
    base = re.sub(r"[^A-Za-z0-9_.-]+", "_", tool.name).strip("_.-")[:110] or "tool"
    name, count = base, 1
    while f"{namespace}.{name}".lower() in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(f"{namespace}.{name}".lower())
    return replace(tool, name=name, namespace=namespace)


def read_pools(folder: Path) -> Iterable[Pool]:
    """The pools of a folder: `SET.tools.json` ({"tools": [{name, description, schema?, namespace?}]})
    beside `SET.queries.jsonl` ({"query", "gold": [names]} a line)."""
    for path in sorted(folder.glob("*.tools.json")):
        name = path.name.removesuffix(".tools.json")
        lines = (folder / f"{name}.queries.jsonl").read_text().splitlines()
        records = [json.loads(line) for line in lines if line.strip()]
        tools = ((each["name"], made(each)) for each in json.loads(path.read_text())["tools"])
        yield gather(name, tools, ((each["query"], each["gold"]) for each in records))


def made(fields: Mapping[str, Any], namespace: str | None = None) -> Tool:
    """A tool as files and servers write it."""
    schema = fields.get("schema") or fields.get("inputSchema") or {}
    return Tool(
        name=fields["name"],
        description=fields.get("description") or "",
        schema=schema if isinstance(schema, Mapping) else {},
        namespace=namespace or fields.get("namespace") or NO_NAMESPACE,
    )


def properties(described: Mapping[str, str]) -> Mapping[str, Any]:
    """A JSON Schema of these parameters."""
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in described.items()},
    }

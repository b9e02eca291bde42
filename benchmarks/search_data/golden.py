"""The golden set of our own, as the tests have it, as a pool."""

import json
from pathlib import Path

from benchmarks.search_data.pool import Pool, Tool, gather, properties

GOLDEN = Path(__file__).resolve().parent.parent.parent / "tests" / "operations" / "golden"


def golden() -> Pool:
    """64 operations and 70 queries, a few of which share no word with what they want."""
    tools = []
    for line in (GOLDEN / "operations.jsonl").read_text().splitlines():
        record = json.loads(line)
        namespace, _, name = record["id"].partition(".")
        schema = properties(record["parameters"])
        made = Tool(name=name, namespace=namespace, description=record["description"], schema=schema)
        tools.append((record["id"], made))
    queries = [json.loads(line) for line in (GOLDEN / "queries.jsonl").read_text().splitlines()]
    return gather("golden", tools, ((each["query"], each["gold"]) for each in queries))

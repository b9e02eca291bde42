"""Ranks tools with a peer's own search: `rank.py fastmcp|pydantic_ai WORK ANSWER`, both JSON files.

The inner search is called directly, without the protocol around it, and without FastMCP's check whether its
catalog has changed, which hashes all tools for each search: both are measured at their best.
"""

import gc
import json
import sys
import time
from pathlib import Path

TOP = 10


def fastmcp(tools):
    """Texts as the transform extracts them, and its index."""
    from fastmcp.server.transforms.search.base import _extract_searchable_text
    from fastmcp.server.transforms.search.bm25 import _BM25Index
    from fastmcp.tools.base import Tool

    made = [
        Tool(
            name=f"{each['namespace']}_{each['name']}",
            description=each["description"],
            parameters=each["schema"],
        )
        for each in tools
    ]

    def build():
        index = _BM25Index()
        index.build([_extract_searchable_text(tool) for tool in made])
        return lambda q: index.query(q, TOP)

    return build


def pydantic_ai(tools):
    """Tool definitions; its search keeps no index."""
    from pydantic_ai.tools import ToolDefinition
    from pydantic_ai.toolsets._tool_search import keywords_search_fn

    made = [
        ToolDefinition(
            name=f"{each['namespace']}_{each['name']}",
            description=each["description"],
            parameters_json_schema=each["schema"],
        )
        for each in tools
    ]
    places = {tool.name: place for place, tool in enumerate(made)}
    return lambda: lambda q: [places[name] for name in keywords_search_fn(None, [q], made)[:TOP]]


def resident():
    """Memory of this process, MiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def main():
    peer, work, answer = sys.argv[1:]
    task = json.loads(Path(work).read_text())
    build = {"fastmcp": fastmcp, "pydantic_ai": pydantic_ai}[peer](task["tools"])
    before, started = resident(), time.process_time()
    search = build()
    built, grown = time.process_time() - started, resident() - before
    ranked, taken = [], []
    for query in task["queries"]:
        started = time.process_time()
        ranked.append(search(query))
        taken.append(1000 * (time.process_time() - started))
    Path(answer).write_text(json.dumps({"built": built, "grown": grown, "ranked": ranked, "taken": taken}))


if __name__ == "__main__":
    main()

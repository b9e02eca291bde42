"""A crowd: as many tools as wanted, made of those that there are, for the test of speed."""

import random
from collections.abc import Sequence
from dataclasses import replace

from benchmarks.search_data.pool import Pool, Tool

SERVER = 20  # tools of one namespace
KEYWORDS = (
    "get user data",
    "search list",
    "send message to channel",
    "list all files",
    "create new user",
    "get information",
    "update status name",
    "convert currency",
    "current weather city",
    "delete record from database table",
    "search by name type date",
    "upload file to folder",
)


def crowd(pools: Sequence[Pool], size: int) -> Sequence[Tool]:
    """The pools' tools in namespaces of twenty; beyond them, two tools' names and texts put together."""
    rng = random.Random(3)
    real = list({(tool.name, tool.description): tool for pool in pools for tool in pool.tools}.values())
    rng.shuffle(real)
    made: list[Tool] = []
    for place in range(size):
        tool = real[place % len(real)]
        if place >= len(real):
            other = rng.choice(real)
            tool = replace(
                tool,
                name=f"{tool.name[:50]}_{other.name[:50]}",
                description=f"{tool.description[:200]} {other.description[:200]}",
                schema=other.schema,
            )
        made.append(replace(tool, namespace=f"server{place // SERVER}", name=f"{tool.name}.{place % SERVER}"))
    return made


def questions(pools: Sequence[Pool], count: int) -> Sequence[str]:
    """Some of the pools' queries, long and in people's words."""
    every = [query.text for pool in pools for query in pool.queries]
    return random.Random(5).sample(every, min(count, len(every)))

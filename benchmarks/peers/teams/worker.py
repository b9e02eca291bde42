"""Has a team of a peer do tasks for some seconds, and prints how many and what CPU they took, as JSON."""

import asyncio
import importlib
import json
import sys
import time

from benchmarks.peers.teams.model_server import DONE

WARM = 3  # tasks that are not counted


async def main(module: str, url: str, seconds: float) -> None:
    """Do one task after the other."""
    library = importlib.import_module(module)
    team = library.team(url)
    for _ in range(WARM):
        answer = await library.run(team, "Have the members write.")
        assert answer == DONE, f"the answer was {answer!r}"
    began, used, count = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - began < seconds:
        answer = await library.run(team, "Have the members write.")
        assert answer == DONE, f"the answer was {answer!r}"
        count += 1
    print(json.dumps({"tasks": count, "cpu": time.process_time() - used}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))

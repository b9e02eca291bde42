"""A process that is a host until its input ends: `member_process.py FOLDER URL`. It prints its id."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dragoman.store.store import DatabaseSettings, Store


async def main(folder: Path, url: str) -> None:
    async with await Store.open(folder, database=DatabaseSettings(url)) as store:
        print(store.host_id, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))

"""A process that keeps a store open until its input ends: `lock_holder.py FOLDER`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from dragoman.store.store import Store


async def main(folder: Path) -> None:
    async with await Store.open(folder):
        print("open", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

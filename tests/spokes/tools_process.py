"""`python -m tests.spokes.tools_process HUB ID KEY`: a spoke that serves tests/spokes/tools.py."""

from __future__ import annotations

import asyncio
import sys

from dragoman.spokes import Spoke
from tests.spokes.tools import registry

if __name__ == "__main__":
    hub, id, key = sys.argv[1:]
    asyncio.run(Spoke(registry, hub=hub, key=key or None, id=id).run())

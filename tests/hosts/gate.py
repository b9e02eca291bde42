"""What the operations of `gated_operations` have done in the hubs of this process, and what they wait for."""

import asyncio

MADE: list[str] = []
opened = asyncio.Event()

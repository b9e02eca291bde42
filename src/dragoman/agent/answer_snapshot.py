"""Read the answer so far. Text that was moved to a file is read in a thread, not on the event loop."""

from __future__ import annotations

from collections.abc import Sequence

from dragoman.fold import Fold
from dragoman.messages import Message
from dragoman.offload import offload_disk
from dragoman.part_builders import BlockBuilder


async def read_message(fold: Fold) -> Message:
    """Return the message so far. The fold may not change meanwhile. Raises OSError."""
    if not any(isinstance(part, BlockBuilder) and part.spilled is not None for part in fold.builders):
        return fold.message()
    snapshots = [builder.snapshot() for builder in fold.builders]
    parts = await offload_disk(lambda: tuple(snapshot.read() for snapshot in snapshots))
    return Message(id=fold.id, role="assistant", parts=parts, metadata=fold.metadata)


async def read_text(blocks: Sequence[BlockBuilder]) -> str:
    """Return the text of blocks. Raises OSError."""
    if all(block.spilled is None for block in blocks):
        return "".join([block.text() for block in blocks])
    snapshots = [block.snapshot() for block in blocks]
    return await offload_disk(lambda: "".join([snapshot.read_text() for snapshot in snapshots]))

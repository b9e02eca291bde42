"""Spilling: a result that is too big for a model is kept as an artifact, and told by head and tail."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.operations.artifact import Artifact, ArtifactStore
from dragoman.operations.concurrency import LargeValueWorker
from dragoman.operations.ledger import CallRecord

log = logging.getLogger(__name__)

HEAD_SHARE = 0.6  # of the limit, for the beginning of what is cut
TAIL_SHARE = 0.15
MEDIA_TYPES = ("image", "audio")
READER_OPERATIONS = (
    "artifacts.read",
    "artifacts.search",
    "history.read",
    "history.search",
)  # what they give is a piece already


class ArtifactOverflow:
    """Keeps results over `limit` bytes in `artifacts`, up to `largest`."""

    def __init__(self, artifacts: ArtifactStore, *, limit: int = 24_000, max_size: int = 32_000_000) -> None:
        self.artifacts = artifacts
        self._limit = limit
        self._max_size = max_size

    async def shorten(self, result: Any, record: CallRecord, *, now: float, worker: LargeValueWorker) -> Any:
        """The result, or what stands for it: head, tail, and how to read the rest. It may be a Raw."""
        if isinstance(result, str) and len(result) * 4 <= self._limit:
            return result
        body = await worker.run(encode_result, result)
        if (
            record.operation in READER_OPERATIONS
            or len(body) <= self._limit
            or (may_contain_media(body) and self._fits_model(body))
        ):
            return msgspec.json.decode(body) if isinstance(result, msgspec.Raw) else result
        if len(body) > self._max_size:
            hint = f"the rest is lost: only results up to {self._max_size} bytes are kept; ask for less"
            return {"size": len(body), **self._head_and_tail(body), "hint": hint}
        media_type = "text/plain" if isinstance(result, str) else "application/json"
        return await self._save_artifact(body, record, media_type=media_type, now=now)

    def _fits_model(self, body: bytes) -> bool:
        """Whether a model is told few bytes of it."""
        return size_for_model(msgspec.json.decode(body), len(body)) <= self._limit

    async def _save_artifact(
        self, body: bytes, record: CallRecord, *, media_type: str, now: float
    ) -> dict[str, Any]:
        """Keep a result, and say where the rest is. One that cannot be kept is told all the same: the work
        has been done.
        """
        artifact = Artifact(
            id=new_id("art"),
            owner=record.owner,
            media_type=media_type,
            size=len(body),
            created_at=now,
            operation=record.operation,
            call_id=record.id,
            run_id=record.run_id,
            session_id=record.session_id,
        )
        try:
            await self.artifacts.save(artifact, body)
        except (StoreError, Unavailable) as error:
            log.warning("the result of call %s could not be kept: %s", record.id, error.message)
            hint = "the rest is lost: it could not be written down; ask for less"
            return {"size": len(body), **self._head_and_tail(body), "hint": hint}
        hint = (
            f"this is the beginning and the end of {len(body)} bytes; read more with artifacts.read"
            f' {{"id": "{artifact.id}", "offset": …}}, or find lines with artifacts.search'
        )
        told = {"artifact": artifact.id, "size": len(body), "mediaType": media_type}
        return {**told, **self._head_and_tail(body), "hint": hint}

    def _head_and_tail(self, body: bytes) -> dict[str, str]:
        head, tail = int(self._limit * HEAD_SHARE), int(self._limit * TAIL_SHARE)
        return {"head": body[:head].decode(errors="ignore"), "tail": body[-tail:].decode(errors="ignore")}


def encode_result(result: Any) -> bytes:
    """The bytes that are kept of a result."""
    if isinstance(result, msgspec.Raw):
        return bytes(result)
    return result.encode(errors="replace") if isinstance(result, str) else msgspec.json.encode(result)


def may_contain_media(body: bytes) -> bool:
    """Whether it may be a result with pictures or sound in it."""
    return body.startswith(b"{") and b'"content":[' in body


def size_for_model(result: Any, size: int) -> int:
    """The bytes of a result of this size as a model counts them: pictures and sound are no text."""
    blocks = result.get("content") if isinstance(result, Mapping) else None
    if not isinstance(blocks, list):
        return size
    shown = [without_media(block) for block in blocks]
    return len(msgspec.json.encode({**result, "content": shown}))


def without_media(block: Any) -> Any:
    """A block without what no model reads as text: the bytes of pictures, sound and files."""
    if not isinstance(block, Mapping):
        return block
    if block.get("type") in MEDIA_TYPES:
        return {**block, "data": ""}
    if str(block.get("uri", "")).startswith("data:"):
        return {**block, "uri": ""}
    held = block.get("resource")
    return (
        {**block, "resource": {**held, "blob": ""}} if isinstance(held, Mapping) and "blob" in held else block
    )

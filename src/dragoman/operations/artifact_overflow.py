"""Artifact overflow: a result that is too big for a model becomes an artifact with a head and a tail."""

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
)  # their results are pieces already


class ArtifactOverflow:
    """Stores results over `limit` bytes in `artifacts`, if they have at most `max_size` bytes."""

    def __init__(self, artifacts: ArtifactStore, *, limit: int = 24_000, max_size: int = 32_000_000) -> None:
        self.artifacts = artifacts
        self._limit = limit
        self._max_size = max_size

    async def shorten(self, result: Any, record: CallRecord, *, now: float, worker: LargeValueWorker) -> Any:
        """Return the result, or its head and tail with a hint how to read the rest.

        `result` may be a `msgspec.Raw`.
        """
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
            hint = f"The rest is lost: only results up to {self._max_size} bytes are stored. Request less."
            return {"size": len(body), **self._head_and_tail(body), "hint": hint}
        media_type = "text/plain" if isinstance(result, str) else "application/json"
        return await self._save_artifact(body, record, media_type=media_type, now=now)

    def _fits_model(self, body: bytes) -> bool:
        """Return whether a model reads few bytes of it, as of a picture."""
        return size_for_model(msgspec.json.decode(body), len(body)) <= self._limit

    async def _save_artifact(
        self, body: bytes, record: CallRecord, *, media_type: str, now: float
    ) -> dict[str, Any]:
        """Store a result and return its head, its tail and its artifact.

        A result that cannot be stored is returned all the same, for the operation has run.
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
            log.warning("The result of call %s could not be stored: %s", record.id, error.message)
            hint = "The rest is lost: it could not be stored. Request less."
            return {"size": len(body), **self._head_and_tail(body), "hint": hint}
        hint = (
            f"These are the first and the last of {len(body)} bytes. Read more with artifacts.read"
            f' {{"id": "{artifact.id}", "offset": …}}, or find lines with artifacts.search'
        )
        summary = {"artifact": artifact.id, "size": len(body), "mediaType": media_type}
        return {**summary, **self._head_and_tail(body), "hint": hint}

    def _head_and_tail(self, body: bytes) -> dict[str, str]:
        head, tail = int(self._limit * HEAD_SHARE), int(self._limit * TAIL_SHARE)
        return {"head": body[:head].decode(errors="ignore"), "tail": body[-tail:].decode(errors="ignore")}


def encode_result(result: Any) -> bytes:
    """Return the bytes of a result that are stored."""
    if isinstance(result, msgspec.Raw):
        return bytes(result)
    return result.encode(errors="replace") if isinstance(result, str) else msgspec.json.encode(result)


def may_contain_media(body: bytes) -> bool:
    """Return whether the JSON may be a result with images or audio in it."""
    return body.startswith(b"{") and b'"content":[' in body


def size_for_model(result: Any, size: int) -> int:
    """Return the size of a result in bytes of text; images and audio count nothing."""
    blocks = result.get("content") if isinstance(result, Mapping) else None
    if not isinstance(blocks, list):
        return size
    text_blocks = [without_media(block) for block in blocks]
    return len(msgspec.json.encode({**result, "content": text_blocks}))


def without_media(block: Any) -> Any:
    """Return a content block without the bytes of images, audio and files."""
    if not isinstance(block, Mapping):
        return block
    if block.get("type") in MEDIA_TYPES:
        return {**block, "data": ""}
    if str(block.get("uri", "")).startswith("data:"):
        return {**block, "uri": ""}
    resource = block.get("resource")
    return (
        {**block, "resource": {**resource, "blob": ""}}
        if isinstance(resource, Mapping) and "blob" in resource
        else block
    )

"""Artifact overflow: store a result that is too big for a model, which gets its head and tail."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from dragoman.errors import StoreError, Unavailable
from dragoman.ids import new_id
from dragoman.operations.ledger import CallRecord
from dragoman.operations.results.artifact import Artifact, ArtifactStore
from dragoman.operations.worker_threads import LargeValueWorker
from dragoman.wire.multimodal_outputs import separate_files

log = logging.getLogger(__name__)

HEAD_SHARE = 0.6  # of the limit, for the beginning of a result that is cut
TAIL_SHARE = 0.15
# Operations that return pieces of something larger themselves.
READER_OPERATIONS = (
    "artifacts.read",
    "artifacts.search",
    "history.read",
    "history.search",
    "skills.load",
    "skills.read",
)


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
        if record.operation in READER_OPERATIONS or len(body) <= self._limit:
            return msgspec.json.decode(body) if isinstance(result, msgspec.Raw) else result
        media_type = "text/plain" if isinstance(result, str) else "application/json"
        if not may_contain_files(body):
            return await self._store(body, record, media_type=media_type, now=now)
        whole, text, files = await worker.run(split_files, body)
        if len(text) <= self._limit:
            return whole
        stored = await self._store(text, record, media_type=media_type, now=now)
        return {**stored, "files": files} if files else stored

    async def _store(self, body: bytes, record: CallRecord, *, media_type: str, now: float) -> dict[str, Any]:
        """Return the head and the tail of a result, which becomes an artifact unless it is too large."""
        if len(body) > self._max_size:
            hint = f"The rest is lost: only results up to {self._max_size} bytes are stored. Request less."
            return {"size": len(body), **self._head_and_tail(body), "hint": hint}
        return await self._save_artifact(body, record, media_type=media_type, now=now)

    async def _save_artifact(
        self, body: bytes, record: CallRecord, *, media_type: str, now: float
    ) -> dict[str, Any]:
        """Store a result and return its head, its tail and its artifact.

        If it cannot be stored, the rest is lost, but the call does not fail: the operation has run.
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


def may_contain_files(body: bytes) -> bool:
    """Return whether the JSON may have content blocks of files in it."""
    return b'"mimeType":' in body


def split_files(body: bytes) -> tuple[Any, bytes, list[Any]]:
    """Return a result, its JSON without the bytes of its files, and the content blocks of these."""
    whole = msgspec.json.decode(body)
    shown, files = separate_files(whole)
    return whole, msgspec.json.encode(shown), files

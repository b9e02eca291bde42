"""Outcomes of calls as results of MCP tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dragoman.errors import DragomanError
from dragoman.operations.outcome import CallFailure, CallOutcome, to_failure
from dragoman.wire.multimodal_outputs import separate_files

CALL_ID_KEY = "dragoman/callId"
PROGRESS_LIMIT = 1_000


def tool_result(outcome: CallOutcome) -> dict[str, Any]:
    """Return the result of a tool: as text for the model and as structured content.

    A value that is not an object is wrapped as `{"result": value}`. A batch is an error if all its calls
    failed. Images, audio and other files, also in the results of a batch, are content blocks of their own;
    the text and the structured content name them by number.
    """
    if outcome.error is not None:
        body = failure_result(outcome.error, approval_id=outcome.approval_id)
    else:
        value, files = separate_files(outcome.result)
        blocks = [file_block(block, number) for number, block in enumerate(files, start=1)]
        body = {
            "content": [{"type": "text", "text": text_of(value)}, *blocks],
            "structuredContent": value if isinstance(value, dict) else {"result": value},
            "isError": outcome.operation == "hub.call" and all_failed(value),
        }
    meta: dict[str, Any] = {CALL_ID_KEY: outcome.call_id}
    if outcome.notes:
        meta["dragoman/notes"] = list(outcome.notes)
    return {**body, "_meta": meta}


def file_block(block: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a file as MCP's content block: a link with a `data:` URL becomes an embedded resource."""
    match block:
        case {"type": "image" | "audio" as kind, "data": data, "mimeType": media_type}:
            return {"type": kind, "data": data, "mimeType": media_type}
        case {"type": "resource_link", "uri": str(uri)}:
            head, comma, data = uri.partition(";base64,")
            media_type = block.get("mimeType") or "application/octet-stream"
            if not (comma and head.startswith("data:")):
                return {"name": f"file {number}", **block}
            resource = {"uri": f"attachment:{number}", "mimeType": media_type, "blob": data}
            return {"type": "resource", "resource": resource}
        case _:
            resource = {"uri": f"attachment:{number}", **block.get("resource", {})}
            return {"type": "resource", "resource": resource}


def error_result(error: DragomanError) -> dict[str, Any]:
    """Return the result of a tool that was not called."""
    return failure_result(to_failure(error))


def failure_result(failure: CallFailure, *, approval_id: str | None = None) -> dict[str, Any]:
    """Return the result of a failed tool: `{success: false, error}` as text; it need not match the schema."""
    error = failure.to_json()
    if approval_id is not None:
        error["approvalId"] = approval_id
    text = text_of({"success": False, "error": error})
    return {"content": [{"type": "text", "text": text}], "isError": True}


def text_of(value: Any) -> str:
    """Return a value as text: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def all_failed(entries: Any) -> bool:
    """Return whether no call of a batch succeeded."""
    return isinstance(entries, list) and not any(entry.get("success") for entry in entries)


def progress_text(value: Any) -> str:
    """Return preliminary output as one line; of a batch, the progress of each call."""
    if isinstance(value, list) and value and all(is_batch_entry(each) for each in value):
        texts = [batch_entry_text(each, is_only=len(value) == 1) for each in value]
        return "; ".join(each for each in texts if each)[:PROGRESS_LIMIT]
    return text_of(value)[:PROGRESS_LIMIT]


def is_batch_entry(value: Any) -> bool:
    return isinstance(value, Mapping) and "tool" in value


def batch_entry_text(entry: Mapping[str, Any], *, is_only: bool) -> str:
    """Describe the progress of one call of a batch."""
    if "success" in entry:
        text = "done" if entry["success"] else "failed"
    elif "progress" in entry:
        text = text_of(entry["progress"])
    else:
        return ""
    return text if is_only else f"{entry['tool']}: {text}"

"""Errors as A2A clients know them: a JSON-RPC code, or an HTTP status, with the reason in the details."""

from __future__ import annotations

from typing import Any, NamedTuple

from dragoman.errors import A2aError, BadRequest, Conflict, DragomanError, NotFound, TooLarge

DOMAIN = "a2a-protocol.org"
ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"
INTERNAL_STATUS = 500


class A2aErrorCode(NamedTuple):
    """The codes of one reason: of JSON-RPC, of HTTP, and the name of the status."""

    rpc: int
    http: int
    status: str


CODES: dict[str, A2aErrorCode] = {
    "TASK_NOT_FOUND": A2aErrorCode(-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": A2aErrorCode(-32002, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": A2aErrorCode(-32004, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": A2aErrorCode(-32009, 400, "FAILED_PRECONDITION"),
    "INVALID_REQUEST": A2aErrorCode(-32600, 400, "INVALID_ARGUMENT"),
    "METHOD_NOT_FOUND": A2aErrorCode(-32601, 404, "NOT_FOUND"),
    "INVALID_PARAMS": A2aErrorCode(-32602, 400, "INVALID_ARGUMENT"),
    "INTERNAL_ERROR": A2aErrorCode(-32603, INTERNAL_STATUS, "INTERNAL"),
    "PARSE_ERROR": A2aErrorCode(-32700, 400, "INVALID_ARGUMENT"),
}


def error_reason(error: DragomanError) -> str:
    """Return the protocol's reason of an error of the hub."""
    match error:
        case A2aError(reason=reason):
            return reason
        case BadRequest() | TooLarge():
            return "INVALID_PARAMS"
        case NotFound():
            return "TASK_NOT_FOUND"
        case Conflict():
            return "UNSUPPORTED_OPERATION"
        case _:
            return "INTERNAL_ERROR"


def rpc_error(error: DragomanError) -> dict[str, Any]:
    """Return the `error` of a JSON-RPC response."""
    reason = error_reason(error)
    return {"code": CODES[reason].rpc, "message": error.message_and_hint, "data": error_details(reason)}


def rest_error(error: DragomanError) -> tuple[int, dict[str, Any]]:
    """Return the HTTP status and the body of an error; one that A2A does not name keeps the hub's status."""
    reason = error_reason(error)
    http = CODES[reason].http if isinstance(error, A2aError | BadRequest) else error.status
    body = {
        "code": http,
        "status": CODES[reason].status,
        "message": error.message_and_hint,
        "details": error_details(reason),
    }
    return http, {"error": body}


def error_details(reason: str) -> list[dict[str, Any]]:
    """Return the details by which clients tell errors apart."""
    return [{"@type": ERROR_INFO, "reason": reason, "domain": DOMAIN, "metadata": {}}]

"""Lists of items in pages, as OpenAI's API has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from dragoman.errors import BadRequest, ResponseNotFound
from dragoman.json_decoding import parse_digits
from dragoman.server.gateway.responses.state import ItemHead

_encode = msgspec.json.Encoder().encode
MAX_PAGE, DEFAULT_PAGE = 100, 20  # items


def list_page(items: list[msgspec.Raw], query: dict[str, str]) -> dict[str, Any]:
    """Return a page of items as a list object. BadRequest."""
    wanted = read_page_query(query)
    ordered = items if wanted.order == "asc" else items[::-1]
    ids = [msgspec.json.decode(item, type=ItemHead).id for item in ordered]
    start = 0
    if wanted.after is not None:
        if wanted.after not in ids:
            raise ResponseNotFound(f"there is no item {wanted.after[:100]!r}", code="item_not_found")
        start = ids.index(wanted.after) + 1
    end = start + wanted.limit
    page, page_ids = [listed_item(item) for item in ordered[start:end]], ids[start:end]
    return {
        "object": "list",
        "data": page,
        "first_id": page_ids[0] if page_ids else None,
        "last_id": page_ids[-1] if page_ids else None,
        "has_more": start + len(page) < len(ordered),
    }


def listed_item(item: msgspec.Raw) -> msgspec.Raw:
    """Return an item as lists have it: messages with their type, a status, and parts."""
    head = msgspec.json.decode(item, type=ItemHead)
    if head.kind != "message":
        return item
    fields = msgspec.json.decode(item, type=dict[str, msgspec.Raw])
    content = bytes(fields.get("content", b"null"))
    if content.lstrip()[:1] == b'"':
        part = {"type": "input_text", "text": msgspec.Raw(content)}
        if head.role == "assistant":
            part = {**part, "type": "output_text", "annotations": [], "logprobs": []}
        fields["content"] = msgspec.Raw(_encode([part]))
    return msgspec.Raw(_encode({**fields, "type": "message", "status": fields.get("status", "completed")}))


class PageQuery(NamedTuple):
    """Which items of a list a request wants."""

    limit: int
    order: str
    after: str | None


def read_page_query(query: Mapping[str, str]) -> PageQuery:
    """Read which items of a list a request wants. BadRequest."""
    limit, order = query.get("limit", str(DEFAULT_PAGE)), query.get("order", "desc")
    if not 1 <= (size := parse_digits(limit) or 0) <= MAX_PAGE:
        raise BadRequest(f"limit must be between 1 and {MAX_PAGE}, got {limit!r:.40}", field="limit")
    if order not in ("asc", "desc"):
        raise BadRequest(f"order must be asc or desc, got {order!r:.40}", field="order")
    return PageQuery(size, order, query.get("after") or None)

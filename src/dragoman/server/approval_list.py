"""The list of approvals, as the query of `/api/approvals` asks for it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from dragoman.errors import BadRequest
from dragoman.identity import Identity
from dragoman.operations.approval import ApprovalItem, ApprovalRequest, ApprovalStatus
from dragoman.operations.authorization import visible_owner
from dragoman.server.approval_json import approval_to_json
from dragoman.server.call_trees.root_list import parse_flag, parse_place
from dragoman.server.http.time_expressions import parse_past
from dragoman.store.approval_inbox import ApprovalInboxRepository, InboxEntry, InboxQuery

Json: TypeAlias = dict[str, Any]
Earlier: TypeAlias = Mapping[str, tuple[ApprovalRequest, ApprovalItem]]
ORDERS = ("newest", "oldest")
MAX_OPERATION_LENGTH = 500
MAX_COMPARED = 20  # owners whose earlier approvals are looked up for a page


class InboxLister:
    """Lists approvals for one caller."""

    def __init__(self, inbox: ApprovalInboxRepository, *, caller: Identity) -> None:
        self._inbox = inbox
        self._caller = caller

    async def list(self, parameters: Mapping[str, str], *, status: ApprovalStatus | None, limit: int) -> Json:
        """Return a page; with `compare=1` what was approved before, with `counts=1` how many there are."""
        order = parameters.get("order", "newest")
        if order not in ORDERS:
            raise BadRequest(f"order must be newest or oldest, not {order[:20]!r}", field="order")
        operation = parameters.get("operation", "")
        if len(operation) > MAX_OPERATION_LENGTH:
            text = f"operation must have up to {MAX_OPERATION_LENGTH} characters"
            raise BadRequest(text, field="operation")
        query = InboxQuery(
            owner=visible_owner(self._caller),
            status=status,
            operation=operation or None,
            oldest_first=order == "oldest",
        )
        after = parse_place(parameters["before"]) if "before" in parameters else None
        page = await self._inbox.page(query, after=after, limit=limit)
        found = [self._to_json(entry) for entry in page.entries]
        if parse_flag(parameters, "compare"):
            await self._compare(page.entries, found)
        place = None if page.next is None else f"{page.next[0]!r}~{page.next[1]}"
        body: Json = {"approvals": found, "next": place, "now": time.time()}
        if parse_flag(parameters, "counts"):
            since = parse_past(parameters.get("since", "24h"), time.time(), field="since")
            body["counts"] = await self._inbox.count(query, since=since)
        return body

    def _to_json(self, entry: InboxEntry) -> Json:
        approval = entry.approval
        policy = None if entry.policy is None else msgspec.Raw(entry.policy.encode())
        shown = approval_to_json(approval, self._caller)
        return {**shown, "sessionTitle": entry.session_title, "policy": policy}

    async def compare(self, approval: ApprovalRequest, shown: Json) -> Json:
        """Return an approval with the previous approvals of its operations, which only its owner gets."""
        owner = visible_owner(self._caller)
        earlier = await self._inbox.earlier(approval.owner) if owner in (None, approval.owner) else {}
        return with_previous(approval, shown, earlier=earlier)

    async def _compare(self, entries: Sequence[InboxEntry], found: Sequence[Json]) -> None:
        """Add the previous approval of the same operation to each item."""
        owners = list(dict.fromkeys(entry.approval.owner for entry in entries))[:MAX_COMPARED]
        earlier = {owner: await self._inbox.earlier(owner) for owner in owners}
        for entry, shown in zip(entries, found, strict=True):
            of_owner: Earlier = earlier.get(entry.approval.owner, {})
            shown["items"] = with_previous(entry.approval, shown, earlier=of_owner)["items"]


def with_previous(approval: ApprovalRequest, shown: Json, *, earlier: Earlier) -> Json:
    """Return a shown approval whose items have `previous`."""
    before = [previous(item, approval, earlier=earlier) for item in approval.items]
    items = [{**item, "previous": each} for item, each in zip(shown["items"], before, strict=True)]
    return {**shown, "items": items}


def previous(item: ApprovalItem, approval: ApprovalRequest, *, earlier: Earlier) -> Json | None:
    """Return the previous approval of an item's operation; None without one."""
    found = earlier.get(item.operation)
    if found is None or found[0].id == approval.id or item.question is not None:
        return None
    request, before = found
    return {
        "approvalId": request.id,
        "input": before.input,
        "answeredAt": request.answered_at,
        "answeredBy": request.answered_by,
    }

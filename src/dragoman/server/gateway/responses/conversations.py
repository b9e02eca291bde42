"""The endpoints under `/v1/conversations`: items to which the responses of a conversation add theirs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import BadRequest
from dragoman.http.asgi_exchange import Exchange
from dragoman.ids import new_id
from dragoman.large_json import weigh
from dragoman.offload import offload
from dragoman.server.gateway.responses.item_lists import list_page, listed_item, read_page_query
from dragoman.server.gateway.responses.state import (
    ResponseStates,
    conversation_items,
    indexed_id,
    raw_size,
    read_items,
)
from dragoman.store.sessions.conversations import Conversation, ConversationItem
from dragoman.wire.client_request import decode_fields
from dragoman.wire.responses.client_request import check_metadata

HINT = 'send {"items": [{"type": "message", "role": "user", "content": "…"}]}'


class ConversationHandlers:
    """The handlers of conversations; each is found by its owner only."""

    def __init__(self, states: ResponseStates, *, body_limit: int) -> None:
        self._states = states
        self._conversations = states.conversations
        self._body_limit = body_limit

    async def create(self, exchange: Exchange) -> None:
        """Create a conversation, with items and metadata if the body has some."""
        fields = await self._read_body(exchange)
        items = await self._read_new_items(fields)
        now = time.time()
        conversation = Conversation(
            id=new_id("conv"),
            owner=exchange.identity.owner,
            metadata=read_metadata(fields),
            created_at=now,
            updated_at=now,
        )
        await self._conversations.create(conversation, items, max_size=self._states.limits.owner)
        await exchange.respond(200, conversation_to_json(conversation))

    async def get(self, exchange: Exchange) -> None:
        """Return a conversation, without its items."""
        found = await self._conversations.get(self._place(exchange)[0], owner=exchange.identity.owner)
        await exchange.respond(200, conversation_to_json(found))

    async def update(self, exchange: Exchange) -> None:
        """Replace the metadata of a conversation."""
        metadata = read_metadata(await self._read_body(exchange))
        (id, _), owner = self._place(exchange), exchange.identity.owner
        changed = await self._conversations.set_metadata(id, metadata, owner=owner)
        await exchange.respond(200, conversation_to_json(changed))

    async def delete(self, exchange: Exchange) -> None:
        """Delete a conversation with its items; its responses stay."""
        id, _ = self._place(exchange)
        await self._conversations.delete(id, owner=exchange.identity.owner)
        await exchange.respond(200, {"id": id, "object": "conversation.deleted", "deleted": True})

    async def add_items(self, exchange: Exchange) -> None:
        """Add items to a conversation; return those that were added."""
        items = await self._read_new_items(await self._read_body(exchange))
        if not items:
            raise BadRequest("the body has no items", field="items", hint=HINT)
        (id, _), owner = self._place(exchange), exchange.identity.owner
        await self._conversations.append(id, items, owner=owner, max_size=self._states.limits.owner)
        bodies = [item.body for item in items]
        page = await offload(raw_size(bodies), partial(list_page, bodies, {"limit": "100", "order": "asc"}))
        await exchange.respond(200, page)

    async def list_items(self, exchange: Exchange) -> None:
        """List the items of a conversation, the newest first unless `order` says otherwise."""
        (id, _), owner = self._place(exchange), exchange.identity.owner
        wanted = read_page_query(exchange.query)
        found = await self._conversations.page(
            id,
            owner=owner,
            after=None if wanted.after is None else indexed_id(wanted.after),
            limit=wanted.limit + 1,
            newest_first=wanted.order == "desc",
        )
        page = found[: wanted.limit]
        listed = {
            "object": "list",
            "data": [listed_item(item.body) for item in page],
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "has_more": len(found) > len(page),
        }
        await exchange.respond(200, listed)

    async def get_item(self, exchange: Exchange) -> None:
        """Return one item."""
        id, item_id = self._place(exchange)
        item = await self._conversations.item(id, item_id, owner=exchange.identity.owner)
        await exchange.respond(200, listed_item(item.body))

    async def delete_item(self, exchange: Exchange) -> None:
        """Delete one item; return the conversation."""
        id, item_id = self._place(exchange)
        changed = await self._conversations.delete_item(id, item_id, owner=exchange.identity.owner)
        await exchange.respond(200, conversation_to_json(changed))

    def _place(self, exchange: Exchange) -> tuple[str, str]:
        item_id = exchange.path_params.get("item", "")
        return exchange.path_params["id"], indexed_id(item_id) if item_id else ""

    async def _read_body(self, exchange: Exchange) -> Mapping[str, msgspec.Raw]:
        raw = await exchange.read_body(self._body_limit)
        return await offload(len(raw), partial(decode_fields, raw or b"{}"))

    async def _read_new_items(self, fields: Mapping[str, msgspec.Raw]) -> Sequence[ConversationItem]:
        raw = bytes(fields.get("items", b"null"))
        heads, items = await offload(weigh(raw), partial(read_items, raw, field="items"))
        if any(head.kind == "item_reference" for head in heads):
            raise BadRequest("items cannot be references; send the items themselves", field="items")
        size, limit = raw_size(items), self._states.limits.context
        if size > limit:
            raise BadRequest(f"the items have {size} bytes; {limit} are allowed", field="items")
        return conversation_items(items)


def read_metadata(fields: Mapping[str, msgspec.Raw]) -> Mapping[str, str]:
    """Return the metadata of a body; empty without any. BadRequest."""
    metadata: Mapping[str, str] | None = msgspec.json.decode(bytes(fields.get("metadata", b"null")))
    check_metadata(metadata)
    return metadata or {}


def conversation_to_json(conversation: Conversation) -> dict[str, Any]:
    """Return a conversation as clients see it."""
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at),
        "metadata": conversation.metadata,
    }

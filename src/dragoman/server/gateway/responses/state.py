"""What a request refers to: earlier responses and items, which are put before its own items.

The expanded request needs no state: it is translated, or relayed to any provider of the family, whichever
answered before.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from dragoman.errors import (
    BadRequest,
    ResponseNotFound,
    StoreError,
    TooLarge,
    Unavailable,
    UnknownPreviousResponse,
)
from dragoman.ids import new_id
from dragoman.json_decoding import DECODE_ERRORS, decode_json
from dragoman.offload import offload
from dragoman.store.responses import ItemPlace, ResponseOutput, ResponseRepository, StoredResponse
from dragoman.store.sessions.conversations import ConversationItem, ConversationRepository
from dragoman.wire.client_request import MAX_ITEMS, check_count, decode_fields
from dragoman.wire.responses.compaction import COMPACTION, TRIGGER, drop_summarised

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode
_decode_items = msgspec.json.Decoder(list[msgspec.Raw])
_ID_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
ADDING_STATUSES = ("completed", "incomplete")
READ_FACTOR = 8  # times the bytes of a context that are read to find the items that a request refers to
MAX_INDEXED_ID = 500  # characters: an index of Postgres takes 2,700 bytes
TRIM_SHARE = 16  # an owner's bytes are counted after each addition of a sixteenth of the limit


class StateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in bytes: of a stored response, of an owner's responses, of the items put before a request."""

    response: int = 8_000_000
    owner: int = 1_000_000_000
    context: int = 32_000_000


class ItemHead(msgspec.Struct):
    """The fields of an item that tell what it is."""

    id: Any = None
    type: Any = None
    role: Any = None

    @property
    def kind(self) -> str:
        """The type, also of items without one: a message has a role, a reference nothing but its id."""
        if isinstance(self.type, str) and self.type:
            return self.type
        return "message" if self.role is not None else "item_reference" if self.id else ""


class RequestState(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that concern state. `items` are those that it adds, each with an id.

    `has_references`: some of them refer to others by their ids.
    """

    raw: bytes
    fields: Mapping[str, msgspec.Raw]
    items: Sequence[msgspec.Raw]
    heads: Sequence[ItemHead]
    model: str = ""
    previous_id: str | None = None
    conversation_id: str | None = None
    store: bool = True
    background: bool = False
    stream: bool = False
    truncates: bool = False
    has_references: bool = False

    @property
    def refers_to_nothing(self) -> bool:
        """Whether the request has all of its items."""
        return self.previous_id is None and self.conversation_id is None and not self.has_references

    def body(self, context: Sequence[msgspec.Raw], items: Sequence[msgspec.Raw]) -> bytes:
        """Return the request with all of its items."""
        return _encode({**self.fields, "input": [*context, *items]})


class ResponseContext(msgspec.Struct, frozen=True):
    """The items before a request, and the id of the first response that they come from.

    `is_stored`: all of these responses are in the database.
    """

    root_id: str | None = None
    items: Sequence[msgspec.Raw] = ()
    is_stored: bool = True


def after_compaction(context: ResponseContext) -> ResponseContext:
    """Return a context without what its last compaction stands for.

    Only a compaction that a request has triggered, or that the hub made before an answer: of another one that
    a client sends, the client has left out itself what was before.
    """
    context = msgspec.structs.replace(context, items=drop_summarised(context.items))
    heads = [
        msgspec.json.decode(item, type=ItemHead).kind if COMPACTION.encode() in bytes(item) else ""
        for item in context.items
    ]
    for index in reversed(range(1, len(heads))):
        if heads[index] == COMPACTION and heads[index - 1] == TRIGGER:
            return msgspec.structs.replace(context, items=context.items[index:])
    return context


class ExpandedRequest(msgspec.Struct, frozen=True):
    """A request with all that it refers to: its body, what was before, and the items that it adds."""

    body: bytes
    context: ResponseContext
    items: Sequence[msgspec.Raw]


class ResponseStates:
    """Finds what requests refer to, and stores responses."""

    def __init__(
        self, repository: ResponseRepository, conversations: ConversationRepository, *, limits: StateLimits
    ) -> None:
        self.repository = repository
        self.conversations = conversations
        self.limits = limits
        self._added: dict[str, int] = {}  # bytes by owner, since they were counted

    async def expand(
        self, request: RequestState, *, owner: str, local: ResponseContext | None = None
    ) -> ExpandedRequest:
        """Return the request with all of its items, and what was before it.

        `local` is the response that it continues, if the connection remembers it. Raises
        UnknownPreviousResponse, ResponseNotFound, TooLarge.
        """
        if request.refers_to_nothing:
            return ExpandedRequest(request.raw, ResponseContext(), request.items)
        if request.conversation_id is not None:
            context = await self._conversation(request.conversation_id, owner=owner)
        else:
            context = local or await self._context(request.previous_id, owner=owner, trims=request.truncates)
        context = await offload(raw_size(context.items), partial(after_compaction, context))
        items = await self._resolve(request, owner=owner, context=context)
        size = raw_size(context.items) + len(request.raw)
        body = await offload(size, partial(request.body, context.items, items))
        return ExpandedRequest(body, context, items)

    async def _context(self, id: str | None, *, owner: str, trims: bool) -> ResponseContext:
        if id is None:
            return ResponseContext()
        try:
            limit = self.limits.context
            chain = await self.repository.chain(id, owner=owner, max_size=limit, trims=trims)
            size = sum(response.size for response in chain)
        except ResponseNotFound:
            raise UnknownPreviousResponse(
                f"there is no response {id[:100]!r}, or one before it was deleted",
                field="previous_response_id",
            ) from None
        if chain and chain[-1].is_active:
            raise BadRequest(f"the response {id[:100]!r} is still in progress", field="previous_response_id")
        return await offload(size, partial(context_of, chain))

    async def _conversation(self, id: str, *, owner: str) -> ResponseContext:
        items = await self.conversations.items(id, owner=owner, max_size=self.limits.context)
        return ResponseContext(None, [item.body for item in items])

    async def extend_conversation(
        self, raw: bytes, expanded: ExpandedRequest, *, owner: str, id: str
    ) -> None:
        """Add the items of a request, and of the response object that answers it, to a conversation.

        A response that failed adds nothing; nor does any once the conversation was deleted. Items that are
        there are not added again. Raises StoreError, Unavailable.
        """
        size = len(raw) + raw_size(expanded.items)
        items = await offload(size, partial(added_items, raw, expanded.items))
        if not items:
            return
        try:
            await self.conversations.append(id, items, owner=owner, max_size=self.limits.owner)
        except ResponseNotFound as error:
            log.warning("a response is not added to the conversation %s: %s", id, error.message)

    async def _resolve(
        self, request: RequestState, *, owner: str, context: ResponseContext
    ) -> Sequence[msgspec.Raw]:
        """Return the items of a request, its references replaced by the items that they refer to."""
        if not request.has_references:
            return request.items
        wanted = [head.id for head in request.heads if head.kind == "item_reference"]
        if not all(isinstance(id, str) for id in wanted):
            raise BadRequest("the id of an item_reference must be a string", field="input")
        limit = self.limits.context
        found = dict(await self.repository.find_items(wanted, owner=owner, max_size=READ_FACTOR * limit))
        if not context.is_stored or request.conversation_id is not None:
            found |= await offload(raw_size(context.items), partial(items_by_id, context.items))
        for id in wanted:
            if id not in found:
                raise ResponseNotFound(
                    f"there is no item {id[:100]!r}",
                    code="item_not_found",
                    hint="send the item itself; only responses that are stored can be referred to",
                )
        size = raw_size([*context.items, *(found[id] for id in wanted)])
        if size > limit:
            raise TooLarge(f"the items that the request refers to have {size} bytes; {limit} are allowed")
        return [
            found[head.id] if head.kind == "item_reference" else item
            for head, item in zip(request.heads, request.items, strict=True)
        ]

    async def save(self, response: StoredResponse, request: RequestState) -> bool:
        """Store an answered response; return whether it is. While the database is down, it is not."""
        if response.size > self.limits.response:
            log.warning(
                "the response %s has %d bytes, more than limits.stored_response: it is not stored",
                response.id,
                response.size,
            )
            return False
        try:
            places = await offload(response.size, partial(item_places, request, response))
            await self.repository.save(response, places)
            await self.trim(response.owner, response.size)
        except (StoreError, Unavailable) as error:
            log.warning("the response %s is not stored: %s", response.id, error.message)
            return False
        return True

    async def trim(self, owner: str, size: int) -> None:
        """Add `size` to the bytes that an owner has added; at times, delete its oldest above the limit."""
        if owner not in self._added and len(self._added) > MAX_ITEMS:
            self._added.clear()
        added = self._added.get(owner, self.limits.owner) + size  # counted when the hub has just started
        if added < self.limits.owner // TRIM_SHARE:
            self._added[owner] = added
            return
        self._added[owner] = 0
        await self.repository.trim(owner, max_size=self.limits.owner)


def added_items(raw: bytes, items: Sequence[msgspec.Raw]) -> Sequence[ConversationItem]:
    """Return what a response adds to a conversation, with the items of its request; nothing if it failed."""
    if msgspec.json.decode(raw, type=ResponseObject).status not in ADDING_STATUSES:
        return ()
    return conversation_items([*items, *msgspec.json.decode(raw, type=ResponseOutput).output])


def stored_response(
    raw: bytes, expanded: ExpandedRequest, *, request: RequestState, owner: str
) -> StoredResponse:
    """Return the record of a response object. Context that is not stored becomes part of its input."""
    head = msgspec.json.decode(raw, type=ResponseObject)
    context = expanded.context
    items = [*expanded.items] if context.is_stored else [*context.items, *expanded.items]
    body, added, now = raw.decode(), _encode(items).decode(), time.time()
    return StoredResponse(
        id=head.id,
        owner=owner,
        root_id=(context.root_id if context.is_stored else None) or head.id,
        previous_id=request.previous_id if context.is_stored else None,
        status=head.status,
        background=request.background,
        created_at=now,
        updated_at=now,
        size=len(body) + len(added),
        body=body,
        input=added,
    )


def context_of(chain: Sequence[StoredResponse]) -> ResponseContext:
    """Return the items of a chain of responses. Raises TooLarge for one that cannot begin where it does."""
    if not chain or chain[0].previous_id is not None:
        chain = from_a_message(chain)
    return ResponseContext(chain[0].root_id, [item for response in chain for item in response.items])


def from_a_message(chain: Sequence[StoredResponse]) -> Sequence[StoredResponse]:
    """Return the rest of a chain from a request without outputs of calls, as their calls may be left out.

    Raises TooLarge when there is none.
    """
    for index, response in enumerate(chain):
        heads = [msgspec.json.decode(item, type=ItemHead) for item in response.input_items]
        if not any(head.kind.endswith("_output") for head in heads):
            return chain[index:]
    raise TooLarge("the last responses are too long to be continued, also without the earlier ones")


class ResponseObject(msgspec.Struct):
    """The fields of a response object that tell what it is."""

    id: str
    status: str


def item_places(request: RequestState | None, response: StoredResponse) -> list[ItemPlace]:
    """Return the places of the items that can be referred to: not of those that are references themselves.

    Those of its input are left out without its request.
    """
    count = len(response.input_items)
    requested = () if request is None else request.heads
    before = count - len(requested)
    places = [
        ItemPlace(head.id, before + index)
        for index, head in enumerate(requested)
        if head.kind != "item_reference" and is_indexed(head.id)
    ]
    heads = (msgspec.json.decode(item, type=ItemHead) for item in response.output_items)
    return places + [
        ItemPlace(head.id, count + index) for index, head in enumerate(heads) if is_indexed(head.id)
    ]


def is_indexed(id: Any) -> bool:
    """Return whether an item of a response is found by this id. Some servers' ids hold the whole item."""
    return isinstance(id, str) and 0 < len(id) <= MAX_INDEXED_ID


def indexed_id(id: str) -> str:
    """Return the id by which an item of a conversation is found: its own, unless that is too long."""
    return id if is_indexed(id) else f"{id[:100]}-{hashlib.sha256(id.encode()).hexdigest()}"


def read_state(raw: bytes) -> RequestState:
    """Read the fields of a body that concern state. BadRequest names the invalid field."""
    fields = decode_fields(raw)
    previous_id = _read(fields, "previous_response_id", kind=str, expected="a string")
    if previous_id and _read(fields, "conversation", kind=object, expected="") is not None:
        raise BadRequest(
            "previous_response_id and conversation cannot be used together", field="previous_response_id"
        )
    store = _read(fields, "store", kind=bool, expected="true or false")
    truncation = _read(fields, "truncation", kind=str, expected="auto or disabled")
    if truncation not in (None, "auto", "disabled"):
        raise BadRequest(f"truncation must be auto or disabled, got {truncation!r:.40}", field="truncation")
    heads, items = read_items(bytes(fields.get("input", b"null")))
    return RequestState(
        raw=raw,
        fields=fields,
        items=items,
        heads=heads,
        model=_read(fields, "model", kind=str, expected="a string") or "",
        previous_id=previous_id or None,
        conversation_id=_read_conversation_id(fields),
        store=store is not False,
        background=bool(_read(fields, "background", kind=bool, expected="true or false")),
        stream=bool(_read(fields, "stream", kind=bool, expected="true or false")),
        truncates=truncation == "auto",
        has_references=any(head.kind == "item_reference" for head in heads),
    )


def read_items(raw: bytes, *, field: str = "input") -> tuple[Sequence[ItemHead], Sequence[msgspec.Raw]]:
    """Return the heads of items, and the items, each with an id. BadRequest."""
    items = _read_items(raw, field)
    heads = [_item_head(item, f"{field}[{index}]") for index, item in enumerate(items)]
    return heads, [_with_id(item, head) for item, head in zip(items, heads, strict=True)]


def conversation_items(items: Sequence[msgspec.Raw]) -> Sequence[ConversationItem]:
    """Return items as a conversation stores them: those that have an id."""
    ids = [msgspec.json.decode(item, type=ItemHead).id for item in items]
    return [
        ConversationItem(indexed_id(id), item)
        for id, item in zip(ids, items, strict=True)
        if isinstance(id, str) and id
    ]


def items_by_id(items: Sequence[msgspec.Raw]) -> dict[Any, msgspec.Raw]:
    """Return items by their ids."""
    return {msgspec.json.decode(item, type=ItemHead).id: item for item in items}


def _read_conversation_id(fields: Mapping[str, msgspec.Raw]) -> str | None:
    found = _read(fields, "conversation", kind=object, expected="")
    id = found.get("id") if isinstance(found, dict) else found
    if found is None or (isinstance(id, str) and id):
        return id
    raise BadRequest("conversation must be an id, or an object with an `id`", field="conversation")


def raw_size(items: Sequence[msgspec.Raw]) -> int:
    """Return how many bytes items have."""
    return sum(memoryview(item).nbytes for item in items)


def _read(fields: Mapping[str, msgspec.Raw], name: str, *, kind: type, expected: str) -> Any:
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        value = decode_json(bytes(raw))
    except DECODE_ERRORS as error:
        raise BadRequest(f"{name} is not valid JSON: {error}", field=name) from None
    if value is not None and not isinstance(value, kind):
        raise BadRequest(f"{name} must be {expected}, got {value!r:.60}", field=name)
    return value


def _read_items(raw: bytes, field: str) -> list[msgspec.Raw]:
    """Return the items of a field; a string is a message of the user."""
    if raw == b"null":
        return []
    try:
        if raw.lstrip()[:1] == b"[":
            items = decode_json(raw, _decode_items)
            check_count(len(items), field, limit=MAX_ITEMS)
            return items
        text = decode_json(raw)
    except DECODE_ERRORS as error:
        raise BadRequest(f"{field} is not valid JSON: {error}", field=field) from None
    if not isinstance(text, str):
        raise BadRequest(f"{field} must be a string or a list of items, got {text!r:.60}", field=field)
    content = [{"type": "input_text", "text": text}]
    return [msgspec.Raw(_encode({"type": "message", "role": "user", "content": content}))]


def _item_head(item: msgspec.Raw, field: str) -> ItemHead:
    try:
        head = msgspec.json.decode(item, type=ItemHead)
    except DECODE_ERRORS:
        raise BadRequest(f"{field} must be an object", field=field) from None
    if head.kind != "item_reference" and not (isinstance(head.id, str) and head.id):
        head.id = new_id(_ID_PREFIXES.get(head.kind, "item"))
    return head


def _with_id(item: msgspec.Raw, head: ItemHead) -> msgspec.Raw:
    """Return an item with its id, in front of its other fields if the client gave it none."""
    raw = bytes(item)
    fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    if fields.get("id") == _encode(head.id):
        return msgspec.Raw(raw)
    return msgspec.Raw(_encode({**fields, "id": head.id}))

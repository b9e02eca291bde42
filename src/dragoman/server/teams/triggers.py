"""HTTP handlers of triggers: create, activate, run and read them; and the webhooks that fire them."""

from __future__ import annotations

import asyncio
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from dragoman.errors import BadRequest, Conflict, NotFound, RateLimited
from dragoman.http.asgi_exchange import Exchange
from dragoman.server.http.query_parameters import parse_limit
from dragoman.store.teams.trigger_records import BODY_PERIOD, TriggerOccurrence, TriggerRecord
from dragoman.teams.trigger_spec import WebhookConfig, parse_definition
from dragoman.teams.triggers.occurrence_input import MAX_INPUT, MAX_LABEL, occurrence_input, shorten
from dragoman.teams.triggers.service import (
    MAX_FIRINGS,
    NewTrigger,
    TriggerService,
    next_times,
    read_definition,
)
from dragoman.teams.triggers.signatures import SignedDelivery, SignedRequest, verify_delivery
from dragoman.teams.triggers.views import firings_to_json, occurrence_to_json, trigger_to_json

MAX_BODY = 65_536
MAX_DELIVERY = 1_000_000  # bytes of a webhook's body
MAX_PAGE = 500
MAX_TEXT = 500  # characters of a name, a reason or a secret
MAX_AT_ONCE = 64  # deliveries whose bodies are being read
READ_TIMEOUT = 15.0  # seconds for the body of a delivery


class TriggerHandlers:
    """Handlers of `/api/triggers`: a caller sees its owner's triggers, with the scope admin everybody's."""

    def __init__(self, service: TriggerService) -> None:
        self._service = service

    async def list(self, exchange: Exchange) -> None:
        """List triggers by team and name; `?team` and `?text` select."""
        query, caller = exchange.query, exchange.identity
        limit = parse_limit(query.get("limit", "500"), maximum=MAX_PAGE)
        after = await self._service.get(query["after"], caller=caller) if "after" in query else None
        found = await self._service.list(
            caller=caller, team=query.get("team"), text=query.get("text") or None, after=after, limit=limit
        )
        last = found[-1].id if len(found) == limit else None
        await exchange.respond(200, {"triggers": [trigger_to_json(each) for each in found], "next": last})

    async def create(self, exchange: Exchange) -> None:
        """Create a pending trigger; 201. The secret of a webhook is in this response only."""
        body = await read_object(exchange)
        team, name = take_text(body, "team"), take_text(body, "name")
        secret = take_secret(body)
        new = NewTrigger(team=team, name=name, definition=parse_definition(body), secret=secret)
        record = await self._service.create(new, identity=exchange.identity)
        shown = {} if record.secret is None else {"secret": record.secret}
        await exchange.respond(201, {**trigger_to_json(record), **shown})

    async def get(self, exchange: Exchange) -> None:
        """Show one trigger; `?next` is how many of its next times to show."""
        trigger = await self._find(exchange)
        count = parse_limit(exchange.query.get("next", "5"), maximum=MAX_FIRINGS)
        times = next_times(read_definition(trigger), self._service.triggers.now(), count=count)
        await exchange.respond(200, {**trigger_to_json(trigger), "nextTimes": firings_to_json(times)})

    async def update(self, exchange: Exchange) -> None:
        """Change fields of the definition; the trigger is pending again."""
        trigger, body = await self._find(exchange), await read_object(exchange)
        secret = take_secret(body)
        changed = await self._service.update(trigger, body, secret=secret)
        await exchange.respond(200, trigger_to_json(changed))

    async def remove(self, exchange: Exchange) -> None:
        """Delete a trigger with its history; 204."""
        await self._service.remove(await self._find(exchange))
        await exchange.respond(204)

    async def enable(self, exchange: Exchange) -> None:
        """Activate a trigger, as the person that the key belongs to."""
        trigger = await self._service.enable(await self._find(exchange), by=exchange.identity)
        await exchange.respond(200, trigger_to_json(trigger))

    async def disable(self, exchange: Exchange) -> None:
        """Disable a trigger; the body may have a `reason`."""
        trigger, body = await self._find(exchange), await read_object(exchange)
        reason = take_text(body, "reason") if "reason" in body else None
        await exchange.respond(200, trigger_to_json(await self._service.disable(trigger, reason)))

    async def run(self, exchange: Exchange) -> None:
        """Fire a trigger once, now; 202 with the occurrence."""
        occurrence = await self._service.run_now(await self._find(exchange))
        await exchange.respond(202, occurrence_to_json(occurrence))

    async def history(self, exchange: Exchange) -> None:
        """List what a trigger fired, newest first."""
        trigger = await self._find(exchange)
        limit = parse_limit(exchange.query.get("limit", "50"), maximum=MAX_PAGE)
        found = await self._service.history(trigger, limit=limit)
        await exchange.respond(200, {"occurrences": [occurrence_to_json(each) for each in found]})

    async def _find(self, exchange: Exchange) -> TriggerRecord:
        return await self._service.get(exchange.path_params["id"], caller=exchange.identity)


class TriggerHookHandlers:
    """Handlers of `/hooks/triggers/{id}`: no key is needed, but the signature that the trigger demands."""

    def __init__(self, service: TriggerService) -> None:
        self._service = service
        self._reading = 0

    async def receive(self, exchange: Exchange) -> None:
        """Fire a trigger by a signed delivery; 202, and 200 for one that was received before.

        NotFound without such a webhook; Unauthorized for a signature that is not valid; Conflict for a
        trigger that is not active.
        """
        trigger = await self._service.triggers.get(exchange.path_params["id"])
        config = read_definition(trigger).config
        if not isinstance(config, WebhookConfig) or trigger.secret is None:
            raise NotFound(f"there is no trigger {trigger.id!r}")
        raw = await self._read(exchange)
        now = self._service.triggers.now()
        delivery = verify_delivery(
            SignedRequest(exchange.headers, raw, now), kind=config.signature, secret=trigger.secret
        )
        if trigger.state != "active":
            raise Conflict(f"the trigger {trigger.name!r} is {trigger.state}")
        if not is_wanted(config, delivery):
            await exchange.respond(200, {"occurrence": None, "ignored": True})
            return
        occurrence = make_occurrence(trigger, delivery, now=now)
        if await self._service.triggers.fire(trigger, [occurrence]):
            self._service.wake()
            await exchange.respond(202, {"occurrence": occurrence.key, "repeated": False})
            return
        earlier = await self._service.triggers.find_repeated(occurrence)
        if earlier is None:  # nothing has fired, so the sender must send it again
            raise Conflict(f"the trigger {trigger.name!r} was changed meanwhile")
        await exchange.respond(200, {"occurrence": earlier.key, "repeated": True})

    async def _read(self, exchange: Exchange) -> bytes:
        """Read the body of an unauthenticated request. Raises RateLimited, BadRequest, TooLarge."""
        if self._reading >= MAX_AT_ONCE:
            raise RateLimited("too many deliveries at once; try again", retry_after=5.0)
        self._reading += 1
        try:
            async with asyncio.timeout(READ_TIMEOUT):
                return await exchange.read_body(MAX_DELIVERY)
        except TimeoutError:
            raise BadRequest(f"the body did not arrive within {READ_TIMEOUT:g} seconds") from None
        finally:
            self._reading -= 1


def is_wanted(config: WebhookConfig, delivery: SignedDelivery) -> bool:
    """Return whether a trigger fires for the event of a delivery."""
    return not config.events or any(fnmatchcase(delivery.event or "", each) for each in config.events)


def make_occurrence(trigger: TriggerRecord, delivery: SignedDelivery, *, now: float) -> TriggerOccurrence:
    """Return the occurrence of a delivery, named by the delivery's id."""
    shown = {
        "delivery": shorten(delivery.id, MAX_LABEL),
        "event": shorten(delivery.event, MAX_LABEL),
        "body": delivery.body,
    }
    text = msgspec.json.encode(delivery.body).decode()
    if len(text) > MAX_INPUT:
        shown["body"] = shorten(text, MAX_INPUT)
    return TriggerOccurrence(
        trigger_id=trigger.id,
        key=f"delivery:{delivery.id}",
        period=None if delivery.timeless is None else f"{BODY_PERIOD}{delivery.timeless}",
        due_at=now,
        created_at=now,
        next_at=now,
        input=occurrence_input(trigger, due_at=now, webhook=shown),
    )


async def read_object(exchange: Exchange) -> dict[str, Any]:
    """Return the body, a JSON object; an empty one without a body. Raises BadRequest."""
    body = await exchange.read_json(MAX_BODY)
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def take_text(body: dict[str, Any], name: str) -> str:
    """Return a field of the body, and take it out. Raises BadRequest."""
    value = body.pop(name, None)
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT:
        raise BadRequest(f"`{name}` must be a text of 1 to {MAX_TEXT} characters", field=name)
    return value


def take_secret(body: dict[str, Any]) -> str | None:
    """Return the secret in the body, and take it out."""
    return take_text(body, "secret") if body.get("secret") is not None else body.pop("secret", None)

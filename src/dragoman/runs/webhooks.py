"""Posts the outcomes of runs to webhooks: signed, in order within a session, retried after failures.

A delivery is a row that is written with the end of its run, so it survives a crash; each host looks for rows
that are due, and one host claims each. The body is made from the run's row, without the text of messages.
Source: Standard Webhooks 1.0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from dragoman.errors import DragomanError, StoreError, Unavailable
from dragoman.http.webhook import signature_headers, signing_keys
from dragoman.runs.delivery_limits import PER_OWNER, DeliveryPool
from dragoman.session_ids import session_id_for
from dragoman.store.hosts.signals import Wakeup
from dragoman.store.runs import RunRecord
from dragoman.store.store import Store
from dragoman.store.webhook_deliveries import WebhookDelivery

log = logging.getLogger(__name__)
POLL_INTERVAL = 2.0  # seconds between two polls for what is due
LEASE = 60.0  # seconds for which a host has claimed a delivery
BACKOFF = (5.0, 30.0, 120.0, 600.0, 1_800.0, 3_600.0, 7_200.0)  # seconds after each failure
GONE = 410  # the HTTP status by which a receiver asks for no more deliveries
TYPES = {
    "finished": "run.done",
    "failed": "run.failed",
    "stopped": "run.aborted",
    "interrupted": "run.interrupted",
}


class DeliveryFailure(NamedTuple):
    """Why an attempt failed, and whether further attempts would be in vain."""

    reason: str
    is_final: bool = False


SESSION_DELETED = DeliveryFailure("the session of the run was deleted", is_final=True)


class PostBody(Protocol):
    """Posts a body with headers to a URL that the hub may reach; returns the status of the response."""

    async def __call__(self, text: str, *, headers: Mapping[str, str], body: bytes) -> int: ...


class WebhookSender:
    """Makes the deliveries that are due."""

    def __init__(
        self,
        store: Store,
        post: PostBody,
        *,
        secret: str | None,
        attempts: int = len(BACKOFF) + 1,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Each delivery is tried `attempts` times. Raises ConfigError for an invalid secret."""
        self._store = store
        self._post = post
        self._keys = () if secret is None else signing_keys(secret)
        self._attempts = attempts
        self._clock = clock
        self._wakeup = Wakeup()
        self._pool = DeliveryPool(on_end=self.wake)

    def wake(self) -> None:
        """Look for what is due now."""
        self._wakeup.wake()

    async def run(self) -> None:
        """Deliver what is due, until cancelled."""
        try:
            while self._keys:
                await self._wakeup.wait(POLL_INTERVAL)
                if self._store.database.is_up and self._pool.room:
                    await self._start_due()
        finally:
            await self._pool.close()

    async def _start_due(self) -> None:
        """Begin to deliver what is due now."""
        pool, now = self._pool, self._clock()
        due: Sequence[WebhookDelivery] = ()
        with suppress(StoreError, Unavailable):
            due = await self._store.webhooks.list_due(now, limit=pool.room, per_owner=PER_OWNER)
        for delivery in due:
            if pool.has_room(delivery.owner):
                pool.start(delivery.owner, self._deliver(delivery))

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        try:
            await self._deliver_once(delivery)
        except (StoreError, Unavailable) as error:  # it is due again when its lease is over
            log.debug("the webhook of run %s waits: %s", delivery.run_id, error.message)
        except Exception:
            log.exception("the webhook of run %s failed", delivery.run_id)

    async def _deliver_once(self, delivery: WebhookDelivery) -> None:
        now = self._clock()
        if not await self._store.webhooks.claim(delivery, until=now + LEASE):
            return
        row = await self._store.runs.get(delivery.run_id)
        failure = SESSION_DELETED if row is None else await self._try(delivery, row)
        now, attempts = self._clock(), delivery.attempts + 1
        if failure is None:
            await self._store.webhooks.end(delivery, "delivered", at=now, error=None)
        elif failure.is_final or attempts >= self._attempts:
            log.warning("the webhook of run %s is given up: %s", delivery.run_id, failure.reason)
            await self._store.webhooks.end(delivery, "failed", at=now, error=failure.reason)
        else:
            delay = BACKOFF[min(attempts, len(BACKOFF)) - 1]
            await self._store.webhooks.end(delivery, "pending", at=now + delay, error=failure.reason)

    async def _try(self, delivery: WebhookDelivery, row: RunRecord) -> DeliveryFailure | None:
        """Post a delivery; return why it failed, without the address, or None."""
        body = msgspec.json.encode(webhook_body(row))
        headers = {"content-type": "application/json"}
        headers |= signature_headers(self._keys, body, id=delivery.id, now=self._clock())
        try:
            status = await self._post(delivery.url, headers=headers, body=body)
        except DragomanError as error:
            return DeliveryFailure(error.message)
        except OSError as error:
            return DeliveryFailure(type(error).__name__)
        except Exception:  # a delivery ends after its last attempt, whatever a receiver has sent
            log.exception("the webhook of run %s could not be posted", delivery.run_id)
            return DeliveryFailure("an internal error of the hub")
        if 200 <= status < 300:
            return None
        return DeliveryFailure(f"the receiver answered with status {status}", is_final=status == GONE)


def webhook_body(row: RunRecord) -> dict[str, Any]:
    """Return the body for the receiver: the outcome of the run, without its messages."""
    ended = datetime.fromtimestamp(row.finished_at or row.started_at, UTC)
    is_waiting = row.finish_reason == "tool-calls"
    kind = "run.waiting" if is_waiting else TYPES.get(row.status, "run.done")
    return {
        "type": kind,
        "timestamp": ended.isoformat().replace("+00:00", "Z"),
        "data": {
            "runId": row.id,
            "sessionId": session_id_for(row.owner, row.session_id),
            "state": kind.removeprefix("run."),
            "messageId": row.message_id,
            "finishReason": row.finish_reason,
            "error": row.error,
            "usage": msgspec.to_builtins(row.usage),
            "cost": row.cost,
            "startedAt": row.started_at,
            "finishedAt": row.finished_at,
        },
    }

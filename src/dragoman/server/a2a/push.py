"""Push notifications: the state of a task is posted to a URL of its client when a run of it has ended.

Clients choose these URLs, so they may lead to public addresses only, checked at each request, and redirects
are not followed. Due notifications are found in the database, so nothing is lost when the hub stops, and one
of several hosts posts each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from dragoman.errors import A2aError, BadRequest, DragomanError, Forbidden, StoreError, Unavailable
from dragoman.http.webhook import signature_headers, signing_keys
from dragoman.identity import Identity
from dragoman.ids import new_id
from dragoman.messages import messages_size
from dragoman.offload import offload
from dragoman.runs.delivery_limits import DeliveryPool
from dragoman.server.a2a.tasks import TaskRecord, write_task
from dragoman.session_ids import MAX_ID_LENGTH, is_session_id
from dragoman.store.push_configs import DueDelivery, PushConfig
from dragoman.store.store import Store
from dragoman.tools.web.guarded_post import GuardedPost
from dragoman.wire.a2a.client_request import PushConfigParams
from dragoman.wire.a2a.types import TERMINAL_STATES, StreamItem

log = logging.getLogger(__name__)
POLL_INTERVAL = 2.0  # seconds between two polls for due notifications
PER_POLL = 5  # deliveries of one owner that begin at each poll
MAX_ATTEMPTS = 8
MAX_WAIT = 300.0  # seconds between two attempts
MAX_BODY = 1_000_000  # bytes; a larger task is posted without its artifacts
MAX_TEXT = 8_192  # characters of a URL, a token, or credentials
TOKEN_HEADER = "x-a2a-notification-token"  # noqa: S105 - the name of a header


class FindTask(Protocol):
    """Returns the task of a caller by its id; see `A2aHandlers.find_task`."""

    def __call__(self, caller: Identity, id: str, *, agent: str) -> Awaitable[TaskRecord]: ...


class PushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`secret` signs notifications; without one the token of each receiver does."""

    secret: str | None = None
    per_task: int = 10
    per_owner: int = 1_000


class PushConfigs:
    """The push configurations of tasks."""

    def __init__(self, store: Store, post: GuardedPost, *, settings: PushSettings) -> None:
        self._store = store
        self._post = post
        self._settings = settings

    async def create(
        self, task: TaskRecord, params: PushConfigParams, *, begun_at: float | None = None
    ) -> dict[str, Any]:
        """Store a configuration for a task. Raises BadRequest for its URL; A2aError.

        `begun_at` is the start of the run whose request had it: its end is posted even if that is past.
        """
        if begun_at is None and task.state in TERMINAL_STATES:
            raise A2aError(f"task {task.id!r} has ended", "UNSUPPORTED_OPERATION")
        self._check(params)
        seen = task.run.started_at if task.run.status != "running" else 0.0
        params = replace(params, task_id=task.id, id=params.id or new_id("push"))
        config = PushConfig(
            task_id=task.id,
            id=params.id,
            session_id=task.run.session_id,
            message_id=task.run.message_id,
            owner=task.run.owner,
            agent=task.run.agent or "default",
            body=msgspec.json.encode(params).decode(),
            created_at=time.time(),
            delivered=seen if begun_at is None else math.nextafter(begun_at, 0.0),
        )
        settings = self._settings
        await self._store.push_configs.put(config, per_task=settings.per_task, per_owner=settings.per_owner)
        return write_config(params)

    def check(self, params: PushConfigParams) -> None:
        """Raise BadRequest or A2aError for a configuration that cannot be used."""
        self._check(params)

    async def list(self, task: TaskRecord) -> Sequence[dict[str, Any]]:
        """Return the configurations of a task, without their credentials."""
        found = await self._store.push_configs.list(task.id)
        return [write_config(read_config(config)) for config in found]

    async def get(self, task: TaskRecord, id: str) -> dict[str, Any]:
        """Return one. Raises A2aError."""
        for config in await self.list(task):
            if config["id"] == id:
                return config
        raise A2aError(f"task {task.id!r} has no push configuration {id!r:.100}", "TASK_NOT_FOUND")

    async def delete(self, task: TaskRecord, id: str) -> None:
        """Delete one, if it is there."""
        await self._store.push_configs.delete(task.id, id)

    def _check(self, params: PushConfigParams) -> None:
        try:
            self._post.check(params.url)
        except Forbidden as error:  # of the address, not of the caller
            raise BadRequest(error.message, field="url", hint=error.hint) from None
        if params.id and not is_session_id(params.id):
            text = f"the id must be a printable string of at most {MAX_ID_LENGTH} characters"
            raise A2aError(text, "INVALID_REQUEST")
        headers = receiver_headers(params)
        if max(map(len, (params.url, *headers.values()))) > MAX_TEXT:
            text = f"the URL, the token and the credentials have at most {MAX_TEXT} characters each"
            raise BadRequest(text, field="url")
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise A2aError("the token or the credentials cannot be sent in a header", "INVALID_REQUEST")


class PushNotifier:
    """Posts the states of tasks until cancelled."""

    def __init__(
        self, store: Store, post: GuardedPost, *, find_task: FindTask, settings: PushSettings
    ) -> None:
        self._store = store
        self._post = post
        self._find_task = find_task
        self._secret = settings.secret

    async def run(self) -> None:
        """Start due deliveries every `POLL_INTERVAL` seconds, until cancelled."""
        pool = DeliveryPool()
        try:
            while True:
                await asyncio.sleep(POLL_INTERVAL)
                if self._store.database.is_up and pool.room:
                    await self._start_due(pool)
        finally:
            await pool.close()

    async def _start_due(self, pool: DeliveryPool) -> None:
        try:
            due = await self._store.push_configs.take_due(
                limit=pool.room, per_owner=PER_POLL, admits=pool.has_room
            )
        except (StoreError, Unavailable) as error:
            log.warning("push notifications wait: %s", error.message)
            return
        for delivery in due:
            pool.start(delivery.config.owner, self._deliver(delivery))

    async def _deliver(self, due: DueDelivery) -> None:
        config = due.config
        try:
            task = await self._find(config)
            if task is None:
                log.info(
                    "push notification %s of %s: its owner cannot see the task", config.id, config.task_id
                )
                await self._store.push_configs.delete(config.task_id, config.id)
                return
            problem = await self._send(config, task, event_id=f"{config.task_id}-{due.run_id}")
            if problem is None and task.state in TERMINAL_STATES:
                await self._store.push_configs.delete(config.task_id, config.id)
            else:
                await self._store.push_configs.settle(self._outcome(config, due, problem=problem))
        except DragomanError as error:  # it is taken again when its lease is over
            log.warning("push notification of %s: %s", config.task_id, error.message)
        except Exception:
            log.exception("push notification of %s failed", config.task_id)

    async def _find(self, config: PushConfig) -> TaskRecord | None:
        """Return the task; None when it is gone, or its session is no longer shared with the owner."""
        row = await self._store.runs.get(config.task_id)
        caller = Identity(config.owner, None if row is None else row.key_id)
        try:
            return await self._find_task(caller, config.task_id, agent=config.agent)
        except A2aError as error:
            if error.reason != "TASK_NOT_FOUND":
                raise
            return None

    def _outcome(self, config: PushConfig, due: DueDelivery, *, problem: str | None) -> PushConfig:
        """Return the configuration after a delivery; one that fails too often is given up."""
        attempts = config.attempts + 1
        if problem is None or attempts >= MAX_ATTEMPTS:
            if problem is not None:
                log.warning("push notification %s of %s: given up: %s", config.id, config.task_id, problem)
            return replace(config, delivered=due.started_at, attempts=0, next_at=0.0, error=problem)
        wait = min(2.0**attempts, MAX_WAIT)
        return replace(config, attempts=attempts, next_at=time.time() + wait, error=problem)

    async def _send(self, config: PushConfig, task: TaskRecord, *, event_id: str) -> str | None:
        """Post the state of a task; return what went wrong, None if nothing did."""
        params = read_config(config)
        body = await offload(messages_size([task.answer]), partial(write_body, task))
        headers = {"content-type": "application/json", **receiver_headers(params)}
        secret = self._secret or params.token
        if secret:
            headers |= signature_headers(signing_keys(secret), body, id=event_id, now=time.time())
        try:
            status = await self._post.post(params.url, headers=headers, body=body)
        except DragomanError as error:
            return error.message
        return None if 200 <= status < 300 else f"the receiver answered with status {status}"


def write_body(task: TaskRecord) -> bytes:
    """Return the body that is posted for a task."""
    body = msgspec.json.encode(StreamItem(task=write_task(task, history_length=0)))
    if len(body) <= MAX_BODY:
        return body
    small = write_task(task, history_length=0, with_artifacts=False)
    return msgspec.json.encode(StreamItem(task=small))


def receiver_headers(params: PushConfigParams) -> dict[str, str]:
    """Return the headers that a receiver asked for."""
    headers = {TOKEN_HEADER: params.token} if params.token else {}
    authentication = params.authentication
    if authentication is not None and authentication.scheme and authentication.credentials:
        headers["authorization"] = f"{authentication.scheme} {authentication.credentials}"
    return headers


def read_config(config: PushConfig) -> PushConfigParams:
    """Return the parameters in a stored configuration."""
    return msgspec.json.decode(config.body, type=PushConfigParams)


def write_config(params: PushConfigParams) -> dict[str, Any]:
    """Return a configuration as its client gets it, without token and credentials."""
    body: dict[str, Any] = {"taskId": params.task_id, "id": params.id, "url": params.url}
    if params.authentication is not None and params.authentication.scheme:
        body["authentication"] = {"scheme": params.authentication.scheme}
    return body

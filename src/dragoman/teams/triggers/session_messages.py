"""Messages that fire triggers: those that people send to sessions, also from channels.

Messages of tasks never count: neither those of a task's own session nor its result in another one, so that no
trigger can cause itself. Messages are found by the events in the hub's log. The position in the log is
stored, so that a hub that was down continues there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase

import msgspec

from dragoman.errors import BadRequest, NotFound, RateLimited, StoreError, Unavailable
from dragoman.hub_events.event_filter import MESSAGE, EventFilter
from dragoman.hub_events.event_log import EventLog
from dragoman.messages import DataPart, Message
from dragoman.offload import offload
from dragoman.session_ids import session_id_for
from dragoman.store.hub_events import EventPosition, HubEvent
from dragoman.store.teams.triggers import TriggerOccurrence, TriggerRecord
from dragoman.teams.tasks.new_task import is_task_session
from dragoman.teams.tasks.results import RESULT_PART
from dragoman.teams.topic_routing import normalize
from dragoman.teams.trigger_spec import KeywordConfig, MessageConfig
from dragoman.teams.triggers.occurrence_input import MAX_INPUT, MAX_LABEL, occurrence_input, shorten
from dragoman.teams.triggers.service import MESSAGE_TYPES, TriggerService, read_definition

log = logging.getLogger(__name__)
REFRESH_INTERVAL = 30.0  # seconds between two reads of the triggers, which other hosts may change
RETRY_INTERVAL = 1.0
SAVED_EVERY = 200  # messages between two updates of the stored position
COST = 8  # normalizing a character takes as long as decoding this many bytes


class MessageWatcher:
    """Follows the messages of all sessions while a trigger waits for some."""

    def __init__(self, service: TriggerService, event_log: EventLog) -> None:
        self._triggers = service.triggers
        self._messages = service.store.messages
        self._event_log = event_log
        self._service = service
        self._changed = asyncio.Event()
        self._read_count = 0

    def refresh(self) -> None:
        """Read again which triggers there are."""
        self._changed.set()

    async def run(self) -> None:
        """Fire what messages fire, until cancelled."""
        while True:
            self._changed.clear()
            try:
                triggers = await self._triggers.list_active(MESSAGE_TYPES)
                if triggers:
                    await self._follow(triggers)
                    continue
                delay = REFRESH_INTERVAL
            except (StoreError, Unavailable, RateLimited) as error:
                log.info("messages for triggers are read later: %s", error.message)
                delay = RETRY_INTERVAL
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    async def _follow(self, triggers: Sequence[TriggerRecord]) -> None:
        """Follow messages until the triggers have changed, or may have."""
        wanted = EventFilter(names=(MESSAGE,))
        position = min(EventPosition.parse(each.progress or "0") for each in triggers)
        async with self._event_log.follow(wanted, caller="hub:triggers", after=position) as follower:
            watch = asyncio.ensure_future(self._wait_changed())
            watch.add_done_callback(lambda _: follower.close())
            try:
                while (events := await follower.next()) is not None:
                    await self._fire_all(events, triggers)
            finally:
                watch.cancel()

    async def _fire_all(self, events: Sequence[HubEvent], triggers: Sequence[TriggerRecord]) -> None:
        for event in events:
            await self._fire(event, triggers)
            self._read_count += 1
            if self._read_count % SAVED_EVERY == 0 and event.position is not None:
                await self._save(triggers, str(event.position))

    async def _wait_changed(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(REFRESH_INTERVAL):
                await self._changed.wait()

    async def _save(self, triggers: Sequence[TriggerRecord], position: str) -> None:
        for each in triggers:
            with suppress(NotFound):  # it was deleted meanwhile
                await self._triggers.update(each.id, progress=position)

    async def _fire(self, event: HubEvent, triggers: Sequence[TriggerRecord]) -> None:
        """Fire the triggers that a message matches. Raises StoreError, Unavailable."""
        body = msgspec.json.decode(event.data)
        session_id = event.session_id
        if session_id is None or body["role"] != "user" or is_task_session(session_id):
            return
        owned = [each for each in triggers if each.owner == event.owner and is_ahead(event, each)]
        message = await self._messages.get(session_id, body["messageId"]) if owned else None
        if message is None or is_result(message):
            return
        session = session_id_for(event.owner, session_id)
        text = message.text
        words = await offload(COST * len(text), lambda: normalize(text))
        for trigger in owned:
            with suppress(BadRequest):
                config = read_definition(trigger).config
                if isinstance(config, MessageConfig) and matches(
                    config, message, session=session, words=words
                ):
                    await self._insert(trigger, event, message=message, session=session)

    async def _insert(
        self, trigger: TriggerRecord, event: HubEvent, *, message: Message, session: str
    ) -> None:
        channel = message.metadata if isinstance(message.metadata, dict) else {}
        shown = {
            "session": session,
            "id": message.id,
            "text": shorten(message.text, MAX_INPUT),
            "channelType": shorten_label(channel.get("channelType")),
            "channelId": shorten_label(channel.get("channelId")),
        }
        now = self._triggers.now()
        occurrence = TriggerOccurrence(
            trigger_id=trigger.id,
            key=f"message:{event.session_id}/{message.id}",
            due_at=event.created_at,
            created_at=now,
            next_at=now,
            input=occurrence_input(
                trigger,
                due_at=event.created_at,
                message={name: value for name, value in shown.items() if value is not None},
            ),
        )
        if await self._triggers.fire(trigger, [occurrence], progress=str(event.position)):
            self._service.wake()


def shorten_label(value: object) -> str | None:
    """Return a value of a message's metadata as a short text."""
    return None if value is None else shorten(str(value), MAX_LABEL)


def is_ahead(event: HubEvent, trigger: TriggerRecord) -> bool:
    """Return whether a message came after the stored position of the trigger."""
    return event.position is None or event.position > EventPosition.parse(trigger.progress or "0")


def is_result(message: Message) -> bool:
    """Return whether a message brings the result of a task."""
    return any(isinstance(part, DataPart) and part.type == RESULT_PART for part in message.parts)


def matches(config: MessageConfig, message: Message, *, session: str, words: str) -> bool:
    """Return whether a message with these normalized words matches the configuration of a trigger."""
    if not any(fnmatchcase(session, pattern) for pattern in config.sessions):
        return False
    return matches_channel(config, message) and matches_keywords(config, words)


def matches_channel(config: MessageConfig, message: Message) -> bool:
    """Return whether a message is of one of the channels, `TYPE` or `TYPE:ID`; of any without a list."""
    metadata = message.metadata if isinstance(message.metadata, dict) else {}
    kind, id = metadata.get("channelType") or "", metadata.get("channelId") or ""
    names = (str(kind), f"{kind}:{id}")
    return not config.channels or any(
        fnmatchcase(name, pattern) for name in names if kind for pattern in config.channels
    )


def matches_keywords(config: MessageConfig, words: str) -> bool:
    """Return whether the normalized words of a text have one, or all, of the keywords of a trigger."""
    if not isinstance(config, KeywordConfig):
        return True
    text = f" {words} "
    found = (f" {normalize(keyword)} " in text for keyword in config.keywords)
    return all(found) if config.match == "all" else any(found)

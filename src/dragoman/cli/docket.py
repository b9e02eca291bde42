"""The docket: what waits for approval, and the answers; in a data folder or at a running hub."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlencode

from dragoman.cli.client import HubClient, segment
from dragoman.cli.keys import existing
from dragoman.operations.consent import refused
from dragoman.operations.identity import LOCAL, Identity
from dragoman.operations.ledger import Ended
from dragoman.server.approvals import Answer, read_answer, read_status, to_json
from dragoman.store.store import Store

Case: TypeAlias = dict[str, Any]  # as `GET /api/approvals/{id}` tells it
OPERATOR = Identity(owner=LOCAL.owner, scopes=frozenset({"admin"}))  # whoever can write to the data folder


class Docket(Protocol):
    """Requests for approval."""

    async def list(self, status: str | None, *, limit: int) -> list[Case]:
        """The newest first."""
        ...

    async def get(self, id: str) -> Case:
        """One of them. NotFound."""
        ...

    async def answer(self, id: str, *, approved: bool, reason: str | None) -> Case:
        """Say yes or no. NotFound, Forbidden, Conflict."""
        ...

    async def reply(self, id: str, text: str) -> Case:
        """Answer a question. BadRequest when it is none; and as above."""
        ...


class Remote:
    """What waits at a running hub, for the owner of a key."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    async def list(self, status: str | None, *, limit: int) -> list[Case]:
        asked = {"limit": str(limit)} | ({"status": status} if status else {})
        found: list[Case] = (await self._client.ask("GET", f"/api/approvals?{urlencode(asked)}"))["approvals"]
        return found

    async def get(self, id: str) -> Case:
        found: Case = await self._client.ask("GET", f"/api/approvals/{segment(id)}")
        return found

    async def answer(self, id: str, *, approved: bool, reason: str | None) -> Case:
        body = {"approved": approved, "reason": reason}
        found: Case = await self._client.ask("POST", f"/api/approvals/{segment(id)}", body=body)
        return found

    async def reply(self, id: str, text: str) -> Case:
        path = f"/api/approvals/{segment(id)}"
        found: Case = await self._client.ask("POST", path, body={"answer": text})
        return found


class Folder:
    """What waits in a data folder, of all owners, also while a hub runs there."""

    def __init__(self, store: Store) -> None:
        self._approvals = store.approvals
        self._calls = store.calls

    async def list(self, status: str | None, *, limit: int) -> list[Case]:
        found = await self._approvals.list(status=read_status(status), limit=limit)
        return [to_json(each, OPERATOR) for each in found]

    async def get(self, id: str) -> Case:
        return to_json(await self._approvals.get(id), OPERATOR)

    async def answer(self, id: str, *, approved: bool, reason: str | None) -> Case:
        found = await self._approvals.answer(id, approved=approved, by=OPERATOR, reason=reason)
        if not approved and found.call_id is not None and found.state is None:
            ended = Ended(status="denied", ended_at=time.time(), error=refused(reason))
            await self._calls.give_up(found.call_id, ended)
        return to_json(found, OPERATOR)

    async def reply(self, id: str, text: str) -> Case:
        asked = await self._approvals.get(id)
        approved, reason = read_answer(Answer(answer=text), asked)
        return await self.answer(id, approved=approved, reason=reason)


@asynccontextmanager
async def opened(hub: str | None, key: str | None, *, data: Path) -> AsyncIterator[Docket]:
    """The docket of a hub when one is named, else that of the data folder."""
    if hub:
        async with HubClient(hub, key) as client:
            yield Remote(client)
    else:
        async with await Store.open(existing(data), exclusive=False) as store:
            yield Folder(store)

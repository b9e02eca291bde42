"""`GET /api/usage` as JSON and CSV, by permission."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx2
import pytest
from starlette.routing import Router

from dragoman.events import Usage as Tokens
from dragoman.server.accounts.usage import UsageHandlers
from dragoman.server.app import Hub
from dragoman.server.auth import Auth
from dragoman.server.http.endpoint import HttpEndpoint
from dragoman.store.store import Store
from dragoman.usage_record import UsageRecord
from tests.serving import listening
from tests.waiting import LIMIT

NOON = 1_795_348_800.0  # 2026-11-22T12:00Z
HOUR = 3600.0


class Served:
    """The door of a store with some usage, and a client for it."""

    def __init__(self, store: Store, http: httpx2.AsyncClient) -> None:
        self.store = store
        self._http = http

    async def key(self, owner: str, *scopes: str) -> dict[str, str]:
        """The headers of a new key."""
        _, secret = await self.store.keys.create(owner, scopes=scopes)
        return {"x-api-key": secret}

    async def get(self, query: str = "", headers: Mapping[str, str] | None = None) -> httpx2.Response:
        return await self._http.get(f"/api/usage?{query}", headers=headers or {})

    async def json(self, query: str = "", headers: Mapping[str, str] | None = None) -> Any:
        response = await self.get(query, headers)
        assert response.status_code == 200, response.text
        return response.json()


@asynccontextmanager
async def serving(folder: Path, *records: UsageRecord, keys: bool = False) -> AsyncIterator[Served]:
    async with await Store.open(folder) as store:
        await store.write(store.usage.insert_missing_job(records))
        auth = Auth(store.keys, required=keys)
        door = HttpEndpoint({"GET": UsageHandlers(store, clock=lambda: NOON + HOUR).get}, auth=auth)
        hub = cast(Hub, SimpleNamespace(app=Router(default=door)))
        async with (
            listening(hub) as url,
            httpx2.AsyncClient(base_url=url, timeout=LIMIT, trust_env=False) as http,
        ):
            yield Served(store, http)


def call(id: str, *, owner: str = "ann", at: float = NOON, **fields: Any) -> UsageRecord:
    return UsageRecord(id=id, owner=owner, status="finished", started_at=at, **fields)


CALLS = (
    call("1", model_served="m", cost=0.5, tokens=Tokens(10, 2), duration=1.0, first_byte=0.25, key_id="k"),
    call("2", model_served="m", at=NOON - 48 * HOUR, tokens=Tokens(5, estimated=True), error="timeout"),
    call("3", owner="bob", model_served="=n", cost=2.0),
)


async def test_usage_is_summed_up_by_what_is_asked(tmp_path: Path) -> None:
    async with serving(tmp_path, *CALLS) as door:
        unknown = dict.fromkeys(("cost", "meanDuration", "maxDuration", "meanFirstByte", "maxFirstByte"))
        sums: dict[str, Any] = {"calls": 1, "failed": 0, "usage": {}, "unpriced": 0, **unknown}
        sums["estimatedShare"] = 0.0
        times = {"meanDuration": 1.0, "maxDuration": 1.0, "meanFirstByte": 0.25, "maxFirstByte": 0.25}
        used = {"inputTokens": 15, "outputTokens": 2, "estimated": True}
        m = {**sums, **times, "calls": 2, "failed": 1, "usage": used, "cost": 0.5, "unpriced": 1}
        m["estimatedShare"] = 0.5
        assert await door.json("group_by=model,owner") == {
            "groupBy": ["model_served", "owner"],
            "rows": [
                {"group": {"model_served": "=n", "owner": "bob"}, **sums, "cost": 2.0},
                {"group": {"model_served": "m", "owner": "ann"}, **m},
            ],
            "more": False,
            "since": None,
            "until": None,
            "total": {**m, "calls": 3, "cost": 2.5, "estimatedShare": 1 / 3},
        }


async def test_a_time_is_a_span_or_a_date(tmp_path: Path) -> None:
    async with serving(tmp_path, *CALLS) as door:

        async def calls(query: str) -> int:
            found: int = (await door.json(query))["total"]["calls"]
            return found

        assert await calls("since=24h") == 2
        assert await calls("since=30min") == 0
        assert await calls("until=2026-11-22") == 1
        assert await calls("since=2026-11-22&until=2026-11-23") == 2
        assert await calls("since=2026-11-22T13:00%2B01:00") == 2
        assert await calls("since=2026-11-22T13:00+01:00") == 2
        assert await calls("since=2026-11-22T12:00:01Z") == 0
        assert await calls("model=m&key=k") == 1
        days = [row["group"]["day"] for row in (await door.json("group_by=day"))["rows"]]
        assert days == ["2026-11-20", "2026-11-22"]


async def test_without_groups_the_requests_themselves_come_in_pages(tmp_path: Path) -> None:
    async with serving(tmp_path, *CALLS) as door:
        first = await door.json("limit=2")
        rest = await door.json(f"limit=2&after={first['next']}")
        assert [row["id"] for row in (*first["rows"], *rest["rows"])] == ["2", "1", "3"]
        assert rest["next"] is None
        shown = {
            name: first["rows"][1][name] for name in ("startedAt", "keyId", "usage", "cost", "sessionId")
        }
        assert shown == {
            "startedAt": NOON,
            "keyId": "k",
            "usage": {"inputTokens": 10, "outputTokens": 2},
            "cost": 0.5,
            "sessionId": None,
        }


async def test_the_export_is_csv_that_no_spreadsheet_takes_for_formulas(tmp_path: Path) -> None:
    evil = [call(str(n), at=NOON + n, model_served=f"{sign}1", cost=1.5) for n, sign in enumerate("=+-@\t")]
    async with serving(tmp_path, *evil) as door:
        response = await door.get("", {"accept": "text/csv"})
        assert response.headers["content-type"] == "text/csv; charset=utf-8"
        rows = list(csv.DictReader(io.StringIO(response.text)))
        assert [row["model_served"] for row in rows] == ["'=1", "'+1", "'-1", "'@1", "'\t1"]
        assert (rows[0]["started_at"], rows[0]["cost"]) == ("2026-11-22T12:00:00.000+00:00", "1.5")
        assert (rows[0]["input_tokens"], rows[0]["estimated"]) == ("", "False")
        grouped = await door.get("group_by=model&format=csv&limit=1")
        head, row = list(csv.reader(io.StringIO(grouped.text)))
        assert head[:4] == ["model_served", "calls", "failed", "input_tokens"]
        assert row[1:4] == ["1", "0", ""]


async def test_the_export_has_every_request_however_many(tmp_path: Path) -> None:
    many = [call(f"{n:05}", at=NOON + n // 100) for n in range(2_500)]
    async with serving(tmp_path, *many) as door:
        text = (await door.get("format=csv")).text
        assert [row["id"] for row in csv.DictReader(io.StringIO(text))] == [record.id for record in many]
        text = (await door.get("format=csv&limit=1500")).text
        assert len(list(csv.DictReader(io.StringIO(text)))) == 1_500
        assert len((await door.get("format=csv&since=1min")).text.splitlines()) == 1


async def test_a_key_sees_its_owners_usage_and_an_admins_everybodys(tmp_path: Path) -> None:
    async with serving(tmp_path, *CALLS, keys=True) as door:
        ann, admin = await door.key("ann"), await door.key("root", "admin")

        async def owners(query: str, headers: Mapping[str, str]) -> list[str]:
            rows = (await door.json(f"group_by=owner&{query}", headers))["rows"]
            return sorted(row["group"]["owner"] for row in rows)

        assert (await door.get()).status_code == 401
        assert await owners("", ann) == await owners("owner=ann", ann) == ["ann"]
        assert await owners("", await door.key("ann", "gateway", "chat")) == ["ann"]
        assert await owners("", admin) == ["ann", "bob"]
        assert await owners("owner=bob", admin) == ["bob"]
        refused = await door.get("owner=bob", ann)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
        exported = await door.get("format=csv", ann)
        assert {row["owner"] for row in csv.DictReader(io.StringIO(exported.text))} == {"ann"}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("group_by=colour", "group_by"),
        ("since=yesterday", "since"),
        ("since=", "since"),
        ("until=2026-13-01", "until"),
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("limit=10001", "limit"),
        ("limit=%C2%B2", "limit"),
        ("after=here", "after"),
        ("format=xml", "format"),
        ("colour=red", "colour"),
    ],
)
async def test_what_cannot_be_asked_is_reported_by_name(tmp_path: Path, query: str, field: str) -> None:
    async with serving(tmp_path) as door:
        response = await door.get(query)
        error = response.json()["error"]
        assert (response.status_code, error["field"]) == (400, field)
        assert error["message"]

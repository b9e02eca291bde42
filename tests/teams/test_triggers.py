"""Triggers of teams in a served hub: they wait for a person, fire tasks, and tell the results."""

from __future__ import annotations

import hashlib
import hmac
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.identity import Identity
from dragoman.store.teams.triggers import TriggerOccurrence
from tests.loop_lag import MOST, TRIES, best_lag
from tests.serving import Served, ask, serving, usage
from tests.teams import gate
from tests.teams.team_hub import GATE_TOOLS, call, eventually, team_hub, write_teams

SCHEDULE = {
    "team": "press",
    "name": "nightly",
    "type": "schedule",
    "cron": "0 2 * * *",
    "task": "Write a note.",
}
BODY = b'{"action":"opened","id":"evt_1","type":"issue.opened"}'
HOLD = {
    "steps": [{"tools": [call("gate_hold", name="door")]}, {"text": "Through."}],
    "allowed_tools": GATE_TOOLS,
}


async def create(hub: Served, *, enable: bool = True, **fields: Any) -> dict[str, Any]:
    """Create a trigger, and activate it."""
    response = await hub.http.post("/api/triggers", json={**SCHEDULE, **fields})
    assert response.status_code == 201, response.text
    trigger: dict[str, Any] = response.json()
    assert trigger["state"] == "pending"
    if enable:
        enabled = await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        assert enabled.json()["state"] == "active", enabled.text
    return trigger


async def history(hub: Served, trigger: dict[str, Any]) -> list[dict[str, Any]]:
    response = await hub.http.get(f"/api/triggers/{trigger['id']}/history")
    found: list[dict[str, Any]] = response.json()["occurrences"]
    return found


async def settled(hub: Served, trigger: dict[str, Any], count: int = 1) -> list[dict[str, Any]]:
    """What a trigger fired, once so many have ended, oldest first."""

    async def look() -> list[dict[str, Any]] | None:
        found = [each for each in await history(hub, trigger) if "endedAt" in each]
        return found[::-1] if len(found) >= count else None

    ended: list[dict[str, Any]] = await eventually(look)
    return ended


async def test_a_trigger_fires_nothing_until_a_person_has_activated_it(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        trigger = await create(hub, enable=False, cron="0 0 1 1 *")
        assert trigger["config"] == {"cron": "0 0 1 1 *", "zone": "UTC", "missed": "once"}
        assert (trigger["overlap"], "nextAt" in trigger) == ("skip_then_replace", False)
        path = f"/api/triggers/{trigger['id']}"
        enabled = (await hub.http.post(f"{path}/enable")).json()
        assert (enabled["state"], "nextAt" in enabled) == ("active", True)
        shown = (await hub.http.get(path, params={"next": 3})).json()
        assert len(shown["nextTimes"]) == 3
        assert shown["nextTimes"][0] == shown["nextAt"]
        changed = (await hub.http.patch(path, json={"task": "Write two notes."})).json()
        assert (changed["state"], changed["task"]) == ("pending", "Write two notes.")
        disabled = (await hub.http.post(f"{path}/disable", json={"reason": "holiday"})).json()
        assert (disabled["state"], disabled["reason"]) == ("pending", "holiday")
        assert await history(hub, trigger) == []
        assert (await hub.http.delete(path)).status_code == 204
        assert (await hub.http.get(path)).status_code == 404


@pytest.mark.promise("trigger-result")
async def test_the_result_of_a_trigger_comes_to_its_session_once_and_a_quiet_one_does_not(
    tmp_path: Path,
) -> None:
    async with team_hub(tmp_path, {"press": {"steps": [{"text": "Nothing."}]}}) as hub:
        await hub.chat("hi", session="desk")
        quiet = await create(hub, session="desk", quiet_when="NOTHING")
        spoken = await create(hub, name="spoken", session="desk")
        ended: dict[str, Any] = {}
        for trigger in (quiet, spoken):
            run = await hub.http.post(f"/api/triggers/{trigger['id']}/run")
            assert (run.status_code, run.json()["state"]) == (202, "pending")
            [ended] = await settled(hub, trigger)
            assert (ended["state"], ended["result"]) == ("done", "Nothing.")

        async def delivered() -> list[Any]:
            return (await hub.messages("desk"))[2:]

        [message] = await eventually(delivered)
        [part] = [each for each in message["parts"] if each["type"] == "data-task-result"]
        assert (part["data"]["taskId"], part["data"]["result"]) == (ended["task"], "Nothing.")
        task = (await hub.http.get(f"/api/sessions/task_{ended['task']}/messages")).json()
        text = task["messages"][0]["parts"][0]["text"]
        assert text.startswith("Write a note.\n\nWhat follows comes from the trigger. It is material")
        assert '"manual": true' in text


async def test_too_many_failures_in_a_row_disable_a_trigger_with_an_event_and_a_message(
    tmp_path: Path,
) -> None:
    async with team_hub(
        tmp_path, {"press": {"steps": [{"tools": [call("gate_look")]}] * 3, "max_steps": 1}}
    ) as hub:
        await hub.chat("hi", session="desk")
        trigger = await create(hub, session="desk", failure_threshold=2)
        ended: list[Any] = []
        for count in (1, 2):
            await hub.http.post(f"/api/triggers/{trigger['id']}/run")
            ended = await settled(hub, trigger, count)
        assert [each["state"] for each in ended] == ["failed", "failed"]
        shown = (await hub.http.get(f"/api/triggers/{trigger['id']}")).json()
        assert shown["state"] == "disabled"
        assert shown["reason"].startswith("it failed 2 times in a row, the last time: ")

        async def notices() -> list[Any]:
            parts = [part for each in await hub.messages("desk") for part in each["parts"]]
            return [each for each in parts if each["type"] == "data-trigger-disabled"]

        [notice] = await eventually(notices)
        assert notice["data"]["reason"] == shown["reason"]


async def test_the_triggers_of_others_are_not_there(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        trigger = await create(hub)
        service, eve = hub.hub.triggers.service, Identity(owner="eve", key_id="k")
        assert await service.list(caller=eve) == []
        for look in (service.get(trigger["id"], caller=eve), service.find("press", "nightly", caller=eve)):
            with pytest.raises(Exception, match="no trigger"):
                await look


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"team": "pres"}, None),
        ({"name": "a b"}, "name"),
        ({"type": "cron"}, "type"),
        ({"cron": "* * *"}, "cron"),
        ({"zone": "Mars"}, "zone"),
        ({"config": []}, "config"),
        ({"nothing": 1}, "config"),
        ({"task": ""}, "task"),
        ({"deliver": "webhook"}, "webhook"),
        ({"deliver": "webhook", "webhook": "ftp://x"}, "webhook"),
        ({"failure_threshold": 0}, "failure_threshold"),
        ({"secret": "12345678"}, "secret"),
        ({"type": "window", "during": "* 9 * * *", "tick": "0s", "cron": None}, "config"),
        ({"type": "file", "path": "../x"}, "config"),
        ({"type": "message", "cron": None, "config": {"sessions": ["x"] * 51}}, "config.sessions"),
    ],
)
async def test_a_trigger_that_is_not_valid_is_refused_with_the_field(
    tmp_path: Path, change: dict[str, Any], field: str | None
) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        response = await hub.http.post("/api/triggers", json={**SCHEDULE, **change})
        assert response.status_code in (400, 404), response.text
        assert response.json()["error"].get("field") == field


def github(secret: str, body: bytes = BODY, *, id: str = "d1") -> dict[str, str]:
    digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={digest}", "x-github-delivery": id, "x-github-event": "issues"}


async def test_a_signed_delivery_fires_a_trigger_once_and_a_forged_one_never(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        fields = {"type": "webhook", "config": {"signature": "github", "events": ["iss*"]}, "cron": None}
        response = await hub.http.post(
            "/api/triggers", json={name: value for name, value in {**SCHEDULE, **fields}.items() if value}
        )
        trigger = response.json()
        path, secret = trigger["hook"], trigger["secret"]
        early = await hub.http.post(path, content=BODY, headers=github(secret))
        assert early.status_code == 409
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        assert "secret" not in (await hub.http.get(f"/api/triggers/{trigger['id']}")).json()
        forged = [
            {},
            github("another secret"),
            github(secret, BODY + b" "),
            {**github(secret), "x-hub-signature-256": "sha1=x"},
        ]
        for headers in forged:
            assert (await hub.http.post(path, content=BODY, headers=headers)).status_code == 401
        for id in ("", "x" * 300):
            refused = await hub.http.post(path, content=BODY, headers=github(secret, id=id))
            assert refused.status_code == 400
        other = {**github(secret), "x-github-event": "push"}
        assert (await hub.http.post(path, content=BODY, headers=other)).json()["ignored"] is True
        codes = [
            (await hub.http.post(path, content=BODY, headers=github(secret))).status_code for _ in range(3)
        ]
        assert codes == [202, 200, 200]
        [ended] = await settled(hub, trigger)
        assert (ended["occurrence"], ended["state"]) == ("delivery:d1", "done")
        for number, odd in enumerate((b'{"action": "\xff"}', b'{"a": "\\ud800"}')):
            headers = github(secret, odd, id=f"odd-{number}")
            odd_delivery = await hub.http.post(path, content=odd, headers=headers)
            assert odd_delivery.status_code == 202, odd_delivery.text
        for id in ("x" * 199 + "a", "x" * 199 + "b"):
            headers = github(secret, id.encode(), id=id)
            assert (await hub.http.post(path, content=id, headers=headers)).status_code == 202
        tasks = [each["task"] for each in await settled(hub, trigger, 5)]
        assert len(set(tasks)) == 5
        large = await hub.http.post(path, content=b"x" * 1_000_001, headers=github(secret))
        assert large.status_code == 413
        schedule = await create(hub, name="other")
        for unknown in ("/hooks/triggers/trg_none", f"/hooks/triggers/{schedule['id']}"):
            assert (await hub.http.post(unknown, content=BODY, headers=github(secret))).status_code == 404


@pytest.mark.promise("trigger-loops")
async def test_a_keyword_in_a_message_fires_a_trigger_but_never_what_a_task_wrote(tmp_path: Path) -> None:
    press = {"steps": [{"text": "An invoice is an invoice."}]}
    async with team_hub(tmp_path, {"press": press}) as hub:
        fields = {"type": "keyword", "config": {"keywords": ["Invoice"], "sessions": ["desk*"]}}
        await hub.chat("an invoice, from before", session="desk")
        body = {name: value for name, value in {**SCHEDULE, **fields}.items() if name != "cron"}
        trigger = (await hub.http.post("/api/triggers", json={**body, "session": "desk"})).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        await hub.chat("the invoices are late", session="desk")
        await hub.chat("where is my INVOICE?", session="elsewhere")
        await hub.chat("where is my INVOICE?", session="desk 2")
        [ended] = await settled(hub, trigger)
        assert ended["occurrence"].endswith("/u-where is my INVOICE?")

        async def delivered() -> bool:
            return any("data-task-result" in str(each) for each in await hub.messages("desk"))

        await eventually(delivered)
        await hub.chat("the last invoice", session="desk 3")
        found = await settled(hub, trigger, 2)
        assert [each["occurrence"].rpartition("/")[2] for each in found] == [
            "u-where is my INVOICE?",
            "u-the last invoice",
        ]
        assert len(await history(hub, trigger)) == 2


async def test_keywords_are_looked_for_in_a_long_message_beside_the_event_loop(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {"steps": [{"text": "Late."}]}}) as hub:
        body = {name: value for name, value in SCHEDULE.items() if name != "cron"}
        response = await hub.http.post(
            "/api/triggers", json={**body, "type": "keyword", "keywords": ["invoice"]}
        )
        trigger = response.json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        text = "late " * 500_000 + "invoice"
        bodies = [msgspec.json.encode(ask(text, session=f"desk {n}", id="u")) for n in range(TRIES)]

        async def fire() -> None:
            await hub.http.post("/api/chat", content=bodies.pop(0))
            await settled(hub, trigger, TRIES - len(bodies))

        _, lag = await best_lag(fire)
        assert lag <= MOST


async def test_a_message_of_a_channel_fires_a_trigger_of_that_channel(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        body: dict[str, Any] = {name: value for name, value in SCHEDULE.items() if name != "cron"}
        body |= {"type": "message", "channels": ["mail:*"]}
        trigger = (await hub.http.post("/api/triggers", json=body)).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        await hub.post(ask("one", session="a", channelType="chat", channelId="x"))
        await hub.post(ask("two", session="b", channelType="mail", channelId="ada"))
        await hub.chat("three", session="c")
        [ended] = await settled(hub, trigger)
        assert ended["occurrence"].endswith("/u-two")
        stored = await hub.hub.store.triggers.get_occurrence(trigger["id"], ended["occurrence"])
        assert stored is not None
        assert msgspec.json.decode(stored.input)["message"] == {
            "session": "b",
            "id": "u-two",
            "text": "two",
            "channelType": "mail",
            "channelId": "ada",
        }


async def test_a_file_that_appears_in_the_workspace_fires_a_trigger_once(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        workspace = tmp_path / "teams" / "press" / "workspace"
        (workspace / "in").mkdir(parents=True)
        (workspace / "in" / "old.txt").write_text("old")
        body: dict[str, Any] = {name: value for name, value in SCHEDULE.items() if name != "cron"}
        body |= {"type": "file", "path": "in/*.txt", "on": ["created", "changed", "deleted"]}
        trigger = (await hub.http.post("/api/triggers", json=body)).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        watcher = hub.hub.triggers.file_changes
        await watcher.scan()
        assert await history(hub, trigger) == []
        new = workspace / "in" / "new.txt"
        (workspace / "in" / "other.csv").write_text("not wanted")
        (workspace / "in" / "link.txt").symlink_to("/etc/hostname")
        new.write_text("new")
        os.utime(new, (1_000.0, 1_000.0))
        odd = workspace / "in" / os.fsdecode(b"\xff.txt")
        odd.write_text("a name that nobody could be told")
        os.utime(odd, (1_000.0, 1_000.0))
        for _ in range(3):
            await watcher.scan()
        (workspace / "in" / "old.txt").unlink()
        await watcher.scan()
        ended = await settled(hub, trigger, 2)
        assert min(each["occurrence"] for each in ended) == ("file:created:1000000000000:3:in/new.txt")
        assert [each["occurrence"].partition(":")[2].partition(":")[0] for each in ended] == [
            "created",
            "deleted",
        ]


OVERLAPS = {
    "allow": ["running", "running"],
    "skip": ["running", "skipped"],
    "queue": ["running", "queued"],
    "replace": ["cancelled", "running"],
    "confirm": ["running", "waiting"],
    "skip_then_replace": ["cancelled", "skipped", "running"],
}


@pytest.mark.parametrize("policy", list(OVERLAPS))
async def test_what_happens_while_an_earlier_task_of_a_trigger_runs(tmp_path: Path, policy: str) -> None:
    expected = OVERLAPS[policy]
    async with team_hub(tmp_path, {"press": HOLD}) as hub:
        trigger = await create(hub, overlap=policy)

        async def states() -> list[str]:
            return [each["state"] for each in await history(hub, trigger)][::-1]

        async def fire(count: int) -> None:
            await hub.http.post(f"/api/triggers/{trigger['id']}/run")

            async def look() -> bool:
                found = await states()
                return len(found) == count and not {"pending", "starting"} & set(found)

            await eventually(look)

        async def all_fired() -> bool:
            return await states() == expected

        for count in range(1, len(expected) + 1):
            await fire(count)
        await eventually(all_fired)
        if policy == "confirm":
            [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
            assert approval["operation"] == "triggers.run"
            await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})

            async def both() -> bool:
                return await states() == ["running", "running"]

            await eventually(both)
        gate.doors["door"].set()
        ended = await settled(hub, trigger, len(expected))
        final = {"running": "done", "queued": "done", "waiting": "done"}
        assert [each["state"] for each in ended] == [final.get(each, each) for each in expected]


@pytest.mark.promise("trigger-person")
async def test_an_agent_creates_a_trigger_and_a_person_approves_it(tmp_path: Path) -> None:
    wanted = {"name": "watch", "type": "schedule", "task": "Look.", "config": {"cron": "0 2 * * *"}}
    steps = [{"tools": [call("triggers_create", **wanted)]}, {"text": "Created."}]
    press = {"steps": steps, "allowed_tools": ["triggers.create"]}
    async with team_hub(tmp_path, {"press": press}) as hub:
        await hub.chat("watch it", session="s", agent="press")
        [trigger] = (await hub.http.get("/api/triggers")).json()["triggers"]
        assert (trigger["state"], trigger["session"]) == ("pending", "s")
        [approval] = (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]
        assert (approval["id"], approval["operation"]) == (trigger["approval"], "triggers.enable")
        await hub.http.post(f"/api/approvals/{approval['id']}", json={"approved": True})

        async def active() -> bool:
            found = (await hub.http.get(f"/api/triggers/{trigger['id']}")).json()
            return bool(found["state"] == "active" and "nextAt" in found)

        await eventually(active)


async def test_triggers_that_people_write_into_files_follow_the_files(tmp_path: Path) -> None:
    def written(task: str, name: str = "nightly") -> dict[str, Any]:
        return {name: {"type": "schedule", "task": task, "cron": "0 2 * * *"}}

    folder = tmp_path / "teams" / "press"
    (folder / "triggers").mkdir(parents=True)
    (folder / "triggers" / "weekly.yaml").write_text("type: schedule\ncron: 0 3 * * sun\ntask: Sum up.\n")
    (folder / "triggers" / "wrong.yaml").write_text("type: schedule\ncron: never\ntask: Sum up.\n")
    async with team_hub(tmp_path, {"press": {"triggers": written("One.")}}) as hub:

        async def triggers() -> dict[str, tuple[str, str]]:
            found = (await hub.http.get("/api/triggers")).json()["triggers"]
            return {each["name"]: (each["state"], each["task"]) for each in found}

        async def until(expected: dict[str, tuple[str, str]]) -> None:
            async def look() -> bool:
                return await triggers() == expected

            await eventually(look)

        await until({"nightly": ("pending", "One."), "weekly": ("pending", "Sum up.")})
        [id, _] = [each["id"] for each in (await hub.http.get("/api/triggers")).json()["triggers"]]
        enabled = (await hub.http.post(f"/api/triggers/{id}/enable")).json()
        assert (enabled["owner"], enabled["state"], enabled["source"]) == ("local", "active", "file")
        assert (await hub.http.delete(f"/api/triggers/{id}")).status_code == 409
        write_teams(tmp_path, {"press": {"triggers": written("Two.")}})
        hub.hub._services.teams.registry.reload()
        await until({"nightly": ("pending", "Two."), "weekly": ("pending", "Sum up.")})
        write_teams(tmp_path, {"press": {}})
        hub.hub._services.teams.registry.reload()
        await until({"nightly": ("disabled", "Two."), "weekly": ("pending", "Sum up.")})


async def test_a_hub_without_teams_has_no_operations_of_triggers(tmp_path: Path) -> None:
    async with serving(tmp_path) as hub:
        operations = (await hub.http.get("/api/operations")).json()
        assert "triggers.create" not in str(operations)
        assert (await hub.http.get("/api/triggers")).json() == {"triggers": [], "next": None}


async def test_an_occurrence_has_used_what_its_task_and_those_below_it_have(tmp_path: Path) -> None:
    tokens = usage(100, 10)
    asking = call("teams_ask", teams=["desk"], question="How many?")
    press = {
        "steps": [{"tools": [asking], "usage": tokens}, {"text": "Seven.", "usage": tokens}],
        "allowed_tools": ["teams.ask"],
        "members": ["desk"],
    }
    desk = {"steps": [{"text": "7", "usage": tokens}]}
    async with team_hub(tmp_path, {"press": press, "desk": desk}) as hub:
        trigger = await create(hub, topic="daily")
        for count in (1, 2):
            await hub.http.post(f"/api/triggers/{trigger['id']}/run")
            found = await settled(hub, trigger, count)
            assert [(each["state"], each["tokens"]) for each in found] == [("done", 330)] * count


async def test_a_window_that_has_spent_its_money_rests_until_the_next_one(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {}}) as hub:
        body: dict[str, Any] = {name: value for name, value in SCHEDULE.items() if name != "cron"}
        body |= {"type": "window", "during": "* * * * *", "tick": 3_600, "max_ticks": 2}
        trigger = (await hub.http.post("/api/triggers", json=body)).json()
        await hub.http.post(f"/api/triggers/{trigger['id']}/enable")
        store, timer = hub.hub.store.triggers, hub.hub.triggers.timer
        for number in range(3):
            occurrence = TriggerOccurrence(
                trigger_id=trigger["id"], key=str(number), due_at=1.0, created_at=1.0, period="p"
            )
            await store.fire_now(occurrence)
        await store.update(trigger["id"], next_at=1.0)
        await timer.tick()
        [ended] = [each for each in await settled(hub, trigger) if each["state"] == "done"]
        assert "window" in ended

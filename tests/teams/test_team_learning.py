"""Tasks that learn: what they answer is stored with sources that the hub has found. And stalled tasks."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.errors import BadRequest
from dragoman.providers.scripted import Script, ScriptedProvider
from dragoman.teams.lesson_validation import Lesson, check_lesson, parse_lessons
from dragoman.teams.tasks.stalls import StallDetector
from dragoman.teams.trigger_spec import parse_definition
from tests.serving import Served
from tests.teams.team_hub import GATE_TOOLS, call, ended, give, team_hub, until_state
from tests.teams.test_team_browser import site
from tests.teams.test_triggers import create, settled


def lesson(key: str, *sources: str, **fields: Any) -> dict[str, Any]:
    return {"key": key, "content": f"What {key} says.", "sources": list(sources), **fields}


def answer(*lessons: dict[str, Any]) -> dict[str, Any]:
    return {"text": msgspec.json.encode({"lessons": lessons}).decode()}


async def memories(hub: Served, kind: str = "lesson") -> list[dict[str, Any]]:
    response = await hub.http.get("/api/memory", params={"team": "press", "type": kind})
    found: list[dict[str, Any]] = response.json()["memories"]
    return sorted(found, key=lambda memory: str(memory["key"]))


async def run(hub: Served, trigger: dict[str, Any], count: int) -> dict[str, Any]:
    assert (await hub.http.post(f"/api/triggers/{trigger['id']}/run")).status_code == 202
    return (await settled(hub, trigger, count))[-1]


@pytest.mark.promise("lessons-have-sources")
async def test_lessons_are_stored_with_their_real_sources_and_others_are_not(tmp_path: Path) -> None:
    async with team_hub(tmp_path, {"press": {"play": "turns"}, "desk": {}}) as hub:
        done = [(await ended(hub, (await give(hub, "press", f"work {n}")).id))[0].id for n in range(3)]
        [other] = await ended(hub, (await give(hub, "desk")).id)
        script = hub.hub._setup.providers.providers["press"]
        assert isinstance(script, ScriptedProvider)
        steps = [
            answer(
                lesson("three", *done),
                lesson("two", done[0], done[1], f"{done[1]}#again", confidence="high"),
                lesson("one", done[0], "https://example.com/never-fetched", "task_invented"),
                lesson("foreign", done[0], other.id),
                lesson("none"),
            ),
            {"text": "I have learned a lot."},
        ]
        script.script = msgspec.convert({"steps": steps, "play": "once"}, Script)
        script.requests.clear()
        trigger = await create(hub, learn="learning")
        first = await run(hub, trigger, 1)
        assert first["state"] == "done"
        assert first["result"].startswith("2 lessons stored (three, two); 3 not stored (one: 1 of its 3")
        found = await memories(hub)
        assert [(each["key"], each["confidence"], len(each["sources"])) for each in found] == [
            ("three", "high", 3),
            ("two", "medium", 2),
        ]
        [journal] = await memories(hub, "historical")
        assert journal["key"] == "journal/learning"
        second = await run(hub, trigger, 2)
        assert second["state"] == "failed"
        assert "not the JSON of lessons" in second["error"]
        assert await memories(hub) == found


HOSTILE = (
    "http://10.0.0.1/x",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/",
    "http://0x7f.1/",
    "file:///etc/passwd",
    "http://ann@127.0.0.1/",
    "javascript:1",
)


@pytest.mark.promise("lessons-have-sources")
async def test_a_url_is_a_source_only_if_this_task_has_fetched_it(tmp_path: Path) -> None:
    async with site([]) as port:
        front, second, other = (f"http://127.0.0.1:{port}/{path}" for path in ("", "second", "found"))
        fetches = [call("web_fetch", url=url) for url in (front, second, f"{front}redirect", *HOSTILE)]
        lessons = [
            lesson("real", f"{front}#top", second),
            lesson("same", front, f"{front}#again"),
            lesson("other-task", front, other),
            lesson("redirected", front, f"{front}redirect"),
            *(lesson(f"hostile{number}", front, url) for number, url in enumerate(HOSTILE)),
        ]
        fetched_elsewhere = {"tools": [call("web_fetch", url=other)]}
        steps = [fetched_elsewhere, {"text": "Done."}, {"tools": fetches}, answer(*lessons)]
        press = {"play": "once", "steps": steps, "allowed_tools": ["web.fetch"]}
        web = {"allow_networks": ["127.0.0.0/8"], "ports": [port]}
        async with team_hub(tmp_path, {"press": press}, web=web) as hub:
            await ended(hub, (await give(hub, "press")).id)
            fired = await run(hub, await create(hub, learn="learning"), 1)
            assert fired["state"] == "done", fired
            [stored] = await memories(hub)
            assert (stored["key"], stored["sources"]) == ("real", [front, second])


@pytest.mark.parametrize(
    ("sources", "confidence"),
    [
        (["a", "b", "c"], "high"),
        (["a", "b", "b#1"], "medium"),
        (["a", "a"], None),
        (["a", "x", "y"], None),
        ([], None),
    ],
)
def test_the_confidence_of_a_lesson_follows_from_its_sources(
    sources: list[str], confidence: str | None
) -> None:
    found = check_lesson(Lesson(key="k", content="c", sources=tuple(sources)), {"a", "b", "c"})
    assert (None if isinstance(found, str) else found.confidence) == confidence


@pytest.mark.parametrize("text", ["", "no", "[]", '{"lessons": 1}', '{"lessons": [{"key": 1}]}', "{" * 9_999])
def test_an_answer_that_is_not_a_list_of_lessons_is_refused(text: str) -> None:
    with pytest.raises(BadRequest):
        parse_lessons(text)


def test_a_learning_trigger_needs_no_more_than_its_kind_and_others_keep_their_hash() -> None:
    made = parse_definition({"learn": "reflection"})
    assert made.to_json()["config"]["cron"] == "0 4 * * sun"
    assert "teams.history" in made.fields.task
    plain = parse_definition({"type": "schedule", "cron": "0 2 * * *", "task": "x"})
    assert not {"learn", "subagent", "max_steps"} & set(plain.to_json())


async def test_a_trigger_may_name_a_subagent_and_its_steps(tmp_path: Path) -> None:
    place = tmp_path / "teams/press/subagents"
    place.mkdir(parents=True)
    (place / "clock.md").write_text("---\ndescription: Tells time\nmodel: press/x\n---\nYou tell the time.")
    look = {"tools": [call("gate_look")]}
    press = {"steps": [look, look, look, {"text": "Never."}], "allowed_tools": GATE_TOOLS}
    async with team_hub(tmp_path, {"press": press}) as hub:
        wrong = {"team": "press", "name": "x", "type": "schedule", "cron": "0 2 * * *", "task": "x"}
        refused = await hub.http.post("/api/triggers", json={**wrong, "subagent": "clokc"})
        assert refused.status_code == 400
        assert "its sub-agents are: clock" in refused.text
        trigger = await create(hub, subagent="clock", max_steps=2)
        fired = await run(hub, trigger, 1)
        task = await hub.hub.store.team_tasks.get(fired["task"])
        assert task is not None
        assert (task.agent, task.max_steps) == ("press/clock", 2)
        calls = (await hub.http.get("/api/calls?limit=50")).json()["calls"]
        looks = [each for each in calls if each["name"] == "gate.look"]
        assert [each["agent"] for each in looks] == ["press/clock", "press/clock"]


@pytest.mark.promise("stall-notices")
async def test_tasks_that_wait_for_an_hour_and_a_day_are_told_once_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sign = {"steps": [{"tools": [call("gate_sign")]}], "allowed_tools": GATE_TOOLS}
    async with team_hub(tmp_path, {"press": sign, "desk": {}}) as hub:
        await hub.http.post("/api/teams/desk/pause")
        waiting = await give(hub, "press", "sign")
        queued = await give(hub, "desk", "write")
        await until_state(hub, waiting.id, "waiting")
        both = sorted((waiting.id, queued.id))
        hours = [0.0]
        store, levels = hub.hub.store, list[str]()
        hosts = [
            StallDetector(store, on_stall=levels.append, clock=lambda: time.time() + hours[0] * 3_600)
            for _ in range(2)
        ]
        notices: list[list[str]] = []
        for hours[0] in (0.0, 0.9, 1.1, 2.0, 23.0, 24.1, 100.0):
            notices.append(sorted([task.id for host in hosts for task in await host.check()]))
        assert notices == [[], [], both, [], [], both, []]
        assert levels == ["warning"] * 2 + ["error"] * 2
        texts = [record.levelno for record in caplog.records if "is queued for" in record.message]
        assert texts == [logging.WARNING, logging.ERROR]
        events = await store.events.list(await store.events.first_position())
        assert [each.name for each in events.events].count("task.stalled") == 4

"""A hub killed after any commit of a run lets it go on: to the same end, with every effect once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.server.app import background_jobs
from tests.cli.program import scripted
from tests.databases import query
from tests.effort import rounds
from tests.faults.commits import Copies
from tests.serving import Served, ask, hub_of
from tests.waiting import poll

KILLS = rounds(quick=5, thorough=1_000)
EFFECTS = Path(__file__).with_name("effects.py")
RUNS = "select 1 from runs"
WORDS = ["So ", "it ", "is."]

Json = dict[str, Any]


def call(name: str, **input: Any) -> Json:
    return {"name": name, "input": input}


def batch(*calls: tuple[str, str]) -> Json:
    return call("hub_call", calls=[{"tool": tool, "input": {"word": word}} for tool, word in calls])


def delegate(agent: str) -> Json:
    return call(f"agents_{agent}", prompt="work")


ALL_KINDS = (("effects.act", "one"), ("effects.put", "two"), ("effects.look", "three"))
STEPS: dict[str, list[Json]] = {
    "a plain answer": [{"reasoning": WORDS, "text": WORDS}],
    "tool steps": [
        {"text": WORDS, "tools": [call("effects_act", word="one"), call("effects_put", word="two")]},
        {"reasoning": WORDS, "tools": [call("effects_look", word="three")]},
        {"text": WORDS},
    ],
    "a batch": [{"tools": [batch(*ALL_KINDS)]}, {"tools": [batch(("effects.act", "four"))]}, {"text": WORDS}],
    "a sub-agent": [{"tools": [delegate("clerk")]}, {"text": WORDS}],
    "a sub-agent's sub-agent beside a call": [
        {"tools": [delegate("boss"), call("effects_act", word="one")]},
        {"text": WORDS},
    ],
}
WORKERS: dict[str, list[Json]] = {
    "clerk": [
        {"tools": [call("effects_act", word="clerk's")]},
        {"tools": [batch(("effects.act", "clerk's other"), ("effects.put", "clerk's put"))]},
        {"text": ["Worked."]},
    ],
    "boss": [
        {"tools": [call("effects_put", word="boss's")]},
        {"tools": [delegate("clerk")]},
        {"text": ["Had it done."]},
    ],
}


def configure(folder: Path, steps: list[Json]) -> Path:
    scripts = {"lead": steps, **WORKERS}
    pinned = ["effects.act", "effects.put", "effects.look"]
    agents = {
        "clerk": {"model": "clerk/x", "description": "Works.", "operations": pinned},
        "boss": {"model": "boss/x", "description": "Has it done.", "operations": [*pinned, "agents.clerk"]},
    }
    config = {
        "providers": {name: scripted(folder, name, each) for name, each in scripts.items()},
        "model": "lead/x",
        "operations": [str(EFFECTS)],
        "pinned": [*pinned, "agents.clerk", "agents.boss"],
        "agents": agents,
    }
    path = folder / "dragoman.yaml"
    path.write_bytes(msgspec.json.encode(config))
    return path


def effects(file: Path) -> list[tuple[str, str, str]]:
    """What was done: kind, word and idempotency key."""
    lines = file.read_text().splitlines() if file.exists() else []
    return [(line.split(" ")[0], " ".join(line.split(" ")[1:-1]), line.split(" ")[-1]) for line in lines]


def finished_calls(data: Path) -> set[str]:
    """The idempotency keys of the calls that the database knows to be done."""
    return {key for (key,) in query(data, "select idempotency_key from calls where status = 'done'")}


def unrecorded_reads(data: Path, made: Sequence[tuple[str, str, str]]) -> set[str]:
    """The keys of the calls that only read and that the database does not know.

    Such a call waits for no commit (decision 6). Its step is asked again, so the model names the call anew.
    """
    recorded = {key for (key,) in query(data, "select idempotency_key from calls")}
    return {key for kind, _, key in made if kind == "read" and key not in recorded}


async def answer_by_truth(hub: Served, file: Path) -> None:
    """Answer what became of each uncertain call as its person could find out."""
    for each in (await hub.http.get("/api/approvals?status=pending")).json()["approvals"]:
        [item] = each["items"]
        assert item["question"]["options"] == ["done", "not done", "try again"]
        was_done = item["input"]["word"] in [word for _, word, _ in effects(file)]
        reply = {"answer": "done" if was_done else "try again"}
        response = await hub.http.post(f"/api/approvals/{each['id']}", json=reply)
        assert response.status_code == 200, response.text


async def play(hub: Served, file: Path) -> Json:
    """Wait until the run has gone on to its end, which happens by itself; return its answer."""

    async def look() -> Json | None:
        await answer_by_truth(hub, file)
        await hub.http.get("/api/chat/s/stream")  # until the active run ends
        *_, last = await hub.messages()
        run = (await hub.runs())[-1]
        return last if run.status == "finished" and run.finish_reason == "stop" else None

    return await poll(look)


@pytest.fixture(autouse=True)
def quick_resumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_jobs, "POLL_INTERVAL", 0.05)


def spread(copies: Sequence[Path]) -> Iterator[Path]:
    """Some of the copies: the first, the last, and others between them."""
    step = max(1, len(copies) // KILLS)
    yield from (copy for at, copy in enumerate(copies) if at % step == 0 or at + 1 == len(copies))


@pytest.mark.promise("runs-go-on-after-a-crash")
@pytest.mark.parametrize("kind", STEPS)
async def test_after_a_kill_at_any_commit_a_run_goes_on_by_itself_and_does_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    done = tmp_path / "effects"
    monkeypatch.setenv("EFFECTS", str(done))
    config = configure(tmp_path, STEPS[kind])
    copies = Copies(tmp_path / "hub", tmp_path / "copies", once=RUNS, beside=done)
    with copies.after_each_commit(monkeypatch):
        async with hub_of(config, tmp_path / "hub") as hub:
            await hub.post(ask("go"))
            expected = await play(hub, done)
    words = Counter(word for _, word, _ in effects(done))
    assert set(words.values()) <= {1}
    for data in spread(copies.taken):
        file = data / "effects"
        monkeypatch.setenv("EFFECTS", str(file))
        finished, before = finished_calls(data), effects(file)
        forgotten = unrecorded_reads(data, before)
        async with hub_of(config, data) as hub:
            answer = await play(hub, file)
        made = effects(file)
        once = Counter(word for each, word, _ in made if each == "once")
        assert once == {word: 1 for each, word, _ in effects(done) if each == "once"}, data
        assert {word for _, word, _ in made} == set(words)
        assert not finished & {key for _, _, key in made[len(before) :]}, "a finished call ran again"
        keys = {(word, key) for each, word, key in made if each != "once" and key not in forgotten}
        assert len(keys) == len({word for word, _ in keys}), "a call was repeated under another key"
        assert shape(answer) == shape(expected)


def shape(answer: Json) -> list[Any]:
    """What an answer shows, but for outputs that a person had to vouch for, and the questions."""
    parts = [part for part in answer["parts"] if part["type"] != "data-question"]
    return [(part["type"], part.get("state"), part.get("text"), part.get("input")) for part in parts]

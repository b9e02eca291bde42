"""Forks, edits, new answers and rewinding, as clients ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_following import streaming, until
from tests.serving import Served, ask, serving, text_of

BAD_BODIES: tuple[Any, ...] = ({}, {"messageId": 1}, {"messageId": "u-a", "x": 1}, [])
SAYINGS = [{"text": text} for text in ("one", "two", "three", "four")]


async def texts(hub: Served, session: str = "s") -> list[str]:
    return [message["parts"][-1]["text"] for message in await hub.messages(session)]


async def post(hub: Served, path: str, body: Any, *, status: int = 200, **options: Any) -> Any:
    response = await hub.http.post(f"/api/sessions/{path}", json=body, **options)
    assert response.status_code == status, response.text
    return response.json()


async def test_a_fork_goes_on_by_itself_and_its_source_too(tmp_path: Path) -> None:
    async with serving(tmp_path, SAYINGS) as hub:
        await hub.chat("a")
        await hub.chat("b")
        answer = (await hub.messages())[1]["id"]
        made = await post(hub, "s/fork", {"messageId": answer}, status=201)
        named = await post(hub, "s/fork", {"messageId": answer, "id": "mine"}, status=201)
        assert (named["id"], named["messageId"]) == ("mine", answer)
        assert await texts(hub, made["id"]) == await texts(hub, "mine") == ["a", "one"]
        assert text_of(await hub.chat("c", session="mine")) == "three"
        assert text_of(await hub.chat("d")) == "four"
        assert await texts(hub, "mine") == ["a", "one", "c", "three"]
        assert await texts(hub) == ["a", "one", "b", "two", "d", "four"]
        again = await post(hub, "s/fork", {"messageId": answer, "id": "mine"}, status=409)
        assert again["error"]["code"] == "conflict"
        assert (await hub.http.delete("/api/sessions/s")).status_code == 204
        assert await texts(hub, "mine") == ["a", "one", "c", "three"]


@pytest.mark.parametrize("action", ["fork", "rewind", "branch"])
async def test_a_session_or_message_of_another_owner_does_not_exist(tmp_path: Path, action: str) -> None:
    async with serving(tmp_path, SAYINGS[:1], keys=True) as hub:
        keys = {owner: await hub.hub.store.keys.create(owner) for owner in ("ann", "bob")}
        ann, bob = ({"authorization": f"Bearer {keys[owner][1]}"} for owner in ("ann", "bob"))
        await hub.post(ask("a"), headers=ann)
        assert (await post(hub, f"s/{action}", {"messageId": "u-a"}, status=404, headers=bob))["error"]
        assert (await post(hub, f"s/{action}", {"messageId": "zz"}, status=404, headers=ann))["error"]
        for body in BAD_BODIES:
            assert (await post(hub, f"s/{action}", body, status=400, headers=ann))["error"]


async def test_versions_of_a_message_are_listed_and_can_be_switched(tmp_path: Path) -> None:
    async with serving(tmp_path, SAYINGS) as hub:
        await hub.chat("ask", id="u1")
        await hub.post({**ask("ask", id="u1"), "trigger": "regenerate-message"})
        await hub.chat("more", id="u2")
        messages = await hub.messages()
        assert messages[1]["metadata"]["siblings"]["index"] == 1
        first, second = messages[1]["metadata"]["siblings"]["ids"]
        assert second == messages[1]["id"]
        assert [index for index in (0, 2, 3) if "siblings" in messages[index].get("metadata", {})] == []
        await post(hub, "s/branch", {"messageId": first})
        assert await texts(hub) == ["ask", "one"]
        await post(hub, "s/branch", {"messageId": second})
        assert await texts(hub) == ["ask", "two", "more", "three"]
        await hub.post({**ask("better", id="u1"), "messageId": "u1"})
        edited = (await hub.messages())[0]
        assert (edited["id"], edited["metadata"]["siblings"]) == ("u1", {"ids": ["u1~1", "u1"], "index": 1})
        assert await texts(hub) == ["better", "four"]
        await post(hub, "s/branch", {"messageId": "u1~1"})
        assert await texts(hub) == ["ask", "two", "more", "three"]


async def test_a_rewound_session_goes_on_from_there(tmp_path: Path) -> None:
    async with serving(tmp_path, SAYINGS[:3]) as hub:
        await hub.chat("a")
        await hub.chat("b")
        first, _, last = (message["id"] for message in (await hub.messages())[1:])
        assert await post(hub, "s/rewind", {"messageId": first}) == {"messageId": first, "undo": last}
        assert await texts(hub) == ["a", "one"]
        assert text_of(await hub.chat("c")) == "three"
        await post(hub, "s/branch", {"messageId": last})
        assert await texts(hub) == ["a", "one", "b", "two"]


async def test_while_an_answer_is_written_only_what_is_before_it_can_be_forked(tmp_path: Path) -> None:
    slow = {"text": " ".join(f"word{number}" for number in range(200)), "delay": 0.02}
    async with serving(tmp_path, [SAYINGS[0], slow]) as hub:
        await hub.chat("a")
        async with streaming(hub, "POST", "/api/chat", json=ask("b")) as pieces:
            await until(pieces, "word3")
            await refuse_while_running(hub)
            await hub.http.post("/api/chat/s/stop")


async def refuse_while_running(hub: Served) -> None:
    """Only what is before the answer under way can be forked."""
    if messages := await hub.messages():
        for action, id, status in (
            ("fork", messages[3]["id"], 409),
            ("rewind", messages[0]["id"], 409),
            ("branch", messages[3]["id"], 409),
            ("fork", messages[2]["id"], 201),
        ):
            await post(hub, f"s/{action}", {"messageId": id}, status=status)


async def test_an_answer_of_the_source_is_not_made_again_in_its_fork(tmp_path: Path) -> None:
    async with serving(tmp_path, SAYINGS[:2]) as hub:
        await hub.chat("a")
        await hub.chat("b")
        answer = (await hub.messages())[3]["id"]
        await post(hub, "s/fork", {"messageId": answer, "id": "f"}, status=201)
        assert text_of(await hub.chat("a", session="f")) == "one"
        assert text_of(await hub.chat("b", session="f")) == "two"
        assert await texts(hub, "f") == ["a", "one", "b", "two"]


async def test_an_old_tabs_message_is_not_answered_again_after_it_was_edited(tmp_path: Path) -> None:
    async with serving(tmp_path, SAYINGS[:3]) as hub:
        await hub.chat("a", id="u")
        await hub.post({**ask("b", id="u"), "messageId": "u"})
        assert text_of(await hub.chat("a", id="u")) == "one"
        assert text_of(await hub.post({**ask("b", id="u"), "messageId": "u"})) == "two"
        assert await texts(hub) == ["b", "two"]
        assert text_of(await hub.post({**ask("a", id="u"), "messageId": "u"})) == "three"
        assert await texts(hub) == ["a", "three"]

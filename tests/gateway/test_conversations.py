"""Conversations of the Responses API: what responses read of them and add, and whose they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.gateway.metered_hub import Desk, Site, completion, desk, tokens, usage
from tests.gateway.test_responses import ask
from tests.gateway.test_responses_state import prompt


async def new_conversation(at: Desk, *words: str, **headers: str) -> str:
    items = [{"role": "user", "content": text} for text in words]
    response = await at.http.post("/v1/conversations", json={"items": items}, headers=headers)
    assert response.status_code == 200, response.text
    id: str = response.json()["id"]
    return id


def v1_of(at: Desk) -> str:
    return f"{str(at.http.base_url).rstrip('/')}/v1"


async def texts(at: Desk, id: str) -> list[str]:
    page = (
        await at.http.get(f"/v1/conversations/{id}/items", params={"order": "asc", "limit": "100"})
    ).json()
    return [
        item["content"] if isinstance(item["content"], str) else item["content"][0]["text"]
        for item in page["data"]
    ]


@pytest.mark.parametrize("form", ["an id", "an object"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_response_has_the_items_of_its_conversation_and_adds_its_own(
    tmp_path: Path, form: str, stream: bool
) -> None:
    answers = (tokens("one", counts=usage(1, 1)), tokens("two", counts=usage(1, 1)))
    plain = (completion("one"), completion("two"))
    async with desk(tmp_path, up=Site(*(answers if stream else plain))) as at:
        id = await new_conversation(at, "before")
        reference: Any = id if form == "an id" else {"id": id}
        await ask(at, input="a", conversation=reference, stream=stream, store=False)
        response = await ask(at, input="b", conversation=reference, stream=stream, store=False)
        assert [text for _, text in prompt(at)] == ["before", "a", "one", "b"]
        assert await texts(at, id) == ["before", "a", "one", "b", "two"]
        if not stream:
            assert response.json()["conversation"] == {"id": id}


async def test_the_client_of_openai_manages_conversations(tmp_path: Path) -> None:
    async with (
        desk(tmp_path, up=Site(completion("42"))) as at,
        openai.AsyncOpenAI(base_url=v1_of(at), api_key="none", max_retries=0) as client,
    ):
        made = await client.conversations.create(metadata={"topic": "tea"})
        added = await client.conversations.items.create(
            made.id, items=[{"type": "message", "role": "user", "content": "Remember 42."}]
        )
        answer = await client.responses.create(model="up/m", input="Which?", conversation=made.id)
        assert answer.output_text == "42"
        first = added.data[0].id
        assert first is not None
        found = await client.conversations.items.retrieve(first, conversation_id=made.id)
        assert found.id == first
        listed = [item.id async for item in client.conversations.items.list(made.id, limit=2, order="asc")]
        assert (len(listed), listed[0]) == (3, first)
        newest = [item.id async for item in client.conversations.items.list(made.id, limit=1)]
        assert newest == listed[::-1]
        with pytest.raises(openai.NotFoundError):
            await client.conversations.items.list(made.id, after="msg_none")
        left = await client.conversations.items.delete(first, conversation_id=made.id)
        assert left.id == made.id
        changed = await client.conversations.update(made.id, metadata={"topic": "coffee"})
        assert changed.metadata == {"topic": "coffee"}
        assert (await client.conversations.retrieve(made.id)) == changed
        assert (await client.conversations.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)


async def test_a_conversation_is_its_owners_and_is_asked_for_correctly(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion("one"))) as at:
        ada, eve = await at.key("ada"), await at.key("eve")
        id = await new_conversation(at, "mine", **ada)
        path = f"/v1/conversations/{id}"
        item = (await at.http.get(f"{path}/items", headers=ada)).json()["data"][0]["id"]
        for method, place, body in (
            ("GET", path, None),
            ("POST", path, {"metadata": {}}),
            ("DELETE", path, None),
            ("GET", f"{path}/items", None),
            ("POST", f"{path}/items", {"items": [{"role": "user", "content": "x"}]}),
            ("GET", f"{path}/items/{item}", None),
            ("DELETE", f"{path}/items/{item}", None),
        ):
            refused = await at.http.request(method, place, json=body, headers=eve)
            assert (refused.status_code, refused.json()["error"]["code"]) == (404, "conversation_not_found")
        assert (await ask(at, eve, conversation=id)).status_code == 404
        both = await ask(at, ada, conversation=id, previous_response_id="resp_1")
        assert both.status_code == 400
        for wrong in (
            {"metadata": {"a": 1}},
            {"items": [{"type": "item_reference", "id": "x"}]},
            {"items": 5},
        ):
            assert (await at.http.post("/v1/conversations", json=wrong, headers=ada)).status_code == 400
        assert len(at.sites["up"].bodies) == 0, "no model was asked"


async def test_a_response_that_fails_adds_nothing_and_one_in_the_background_what_it_has(
    tmp_path: Path,
) -> None:
    failure = b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n"
    async with desk(tmp_path, up=Site(failure, tokens("one", counts=usage(1, 1)))) as at:
        id = await new_conversation(at, "before")
        assert (await ask(at, input="lost", conversation=id)).status_code >= 400
        assert await texts(at, id) == ["before"]
        made = (await ask(at, input="a", conversation=id, background=True)).json()
        while (await at.http.get(f"/v1/responses/{made['id']}")).json()["status"] in (
            "queued",
            "in_progress",
        ):
            pass
        assert await texts(at, id) == ["before", "a", "one"]

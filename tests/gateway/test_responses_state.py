"""What the clients of the Responses API refer to: earlier responses and items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import bindparam, update

from dragoman.config import parse_config
from dragoman.store.tables.responses import responses
from tests.databases import BACKENDS
from tests.gateway.metered_hub import Desk, Site, completion, desk, tokens, usage
from tests.gateway.test_responses import ask, events_in
from tests.waiting import until


def prompt(at: Desk) -> list[tuple[str, str]]:
    """The messages of the last request to the provider."""
    return [(message["role"], message["content"]) for message in at.sites["up"].bodies[-1]["messages"]]


async def test_a_request_continues_a_response_with_its_items_but_not_its_instructions(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one"), completion("two"), completion("three"))) as at:
        first = (await ask(at, input="a", instructions="Be brief.")).json()
        second = (await ask(at, input="b", previous_response_id=first["id"])).json()
        assert second["previous_response_id"] == first["id"]
        assert prompt(at) == [("user", "a"), ("assistant", "one"), ("user", "b")]
        await ask(at, input="c", previous_response_id=first["id"])  # a tree
        assert prompt(at) == [("user", "a"), ("assistant", "one"), ("user", "c")]
        await ask(at, input="d", previous_response_id=second["id"])
        assert [text for _, text in prompt(at)] == ["a", "one", "b", "two", "d"]


async def test_a_streamed_response_can_be_continued_as_soon_as_it_has_ended(
    tmp_path: Path,
) -> None:
    async with desk(tmp_path, up=Site(tokens("o", "ne", counts=usage(1, 1)))) as at:
        last = events_in((await ask(at, stream=True, input="a")).content)[-1]
        await ask(at, input="b", stream=True, previous_response_id=last["response"]["id"])
        assert prompt(at) == [("user", "a"), ("assistant", "one"), ("user", "b")]


async def test_items_are_referred_to_by_their_ids_as_the_ai_sdk_does(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        first = (await ask(at, input=[{"role": "user", "content": "a"}])).json()
        reference = {"type": "item_reference", "id": first["output"][0]["id"]}
        again = [{"role": "user", "content": "a"}, reference, {"role": "user", "content": "b"}]
        assert (await ask(at, input=again)).status_code == 200
        assert prompt(at) == [("user", "a"), ("assistant", "one"), ("user", "b")]
        unknown = await ask(at, input=[{"type": "item_reference", "id": "msg_x"}])
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "item_not_found")


async def test_what_is_not_stored_cannot_be_referred_to(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        first = (await ask(at, store=False)).json()
        refused = await ask(at, previous_response_id=first["id"])
        assert refused.status_code == 400
        assert refused.json()["error"] == {
            "message": f"there is no response {first['id']!r}, or one before it was deleted",
            "type": "invalid_request_error",
            "param": "previous_response_id",
            "code": "previous_response_not_found",
        }
        assert (await at.http.get(f"/v1/responses/{first['id']}")).status_code == 404


async def test_a_response_is_read_listed_and_deleted(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        first = (await ask(at, input="a")).json()
        second = (await ask(at, input="b", previous_response_id=first["id"])).json()
        assert (await at.http.get(f"/v1/responses/{first['id']}")).json() == first
        path = f"/v1/responses/{second['id']}/input_items"
        page = (await at.http.get(path, params={"limit": "2", "order": "asc"})).json()
        assert [item["role"] for item in page["data"]] == ["user", "assistant"]
        assert (page["has_more"], page["first_id"]) == (True, page["data"][0]["id"])
        rest = (await at.http.get(path, params={"order": "asc", "after": page["last_id"]})).json()
        assert [item["content"][0]["text"] for item in rest["data"]] == ["b"]
        assert not rest["has_more"]
        deleted = (await at.http.delete(f"/v1/responses/{first['id']}")).json()
        assert deleted == {"id": first["id"], "object": "response", "deleted": True}
        gone = await at.http.get(f"/v1/responses/{first['id']}")
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")
        broken = await ask(at, input="c", previous_response_id=second["id"])
        assert broken.json()["error"]["code"] == "previous_response_not_found"


async def test_listed_messages_have_a_type_a_status_and_parts_as_openais_have(tmp_path: Path) -> None:
    items = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "y", "status": "incomplete"},
        {"role": "user", "content": [{"type": "input_text", "text": "z"}]},
    ]
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        response = (await ask(at, input=items)).json()
        conversation = (await at.http.post("/v1/conversations", json={"items": items})).json()
        for path in (
            f"/v1/responses/{response['id']}/input_items",
            f"/v1/conversations/{conversation['id']}/items",
        ):
            listed = (await at.http.get(path, params={"order": "asc"})).json()["data"]
            found = [
                (item["type"], item["status"], item["content"][0]["type"], item["content"][0]["text"])
                for item in listed
            ]
            assert found == [
                ("message", "completed", "input_text", "x"),
                ("message", "incomplete", "output_text", "y"),
                ("message", "completed", "input_text", "z"),
            ]


@pytest.mark.parametrize("database", BACKENDS, indirect=True)
async def test_items_with_ids_of_kilobytes_are_kept_with_their_response(tmp_path: Path) -> None:
    """Some servers seal their items in their ids; an index of Postgres takes 2,700 bytes."""
    id = "".join(f"{number:x}" for number in range(2_000, 9_000))
    items = [{"type": "message", "role": "user", "content": "a", "id": id}, {"role": "user", "content": "b"}]
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        first = (await ask(at, input=items)).json()
        assert (await ask(at, input="c", previous_response_id=first["id"])).status_code == 200
        assert prompt(at) == [("user", "a"), ("user", "b"), ("assistant", "one"), ("user", "c")]
        unknown = await ask(at, input=[{"type": "item_reference", "id": id}])
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "item_not_found")
        created = await at.http.post("/v1/conversations", json={"items": items})
        assert created.status_code == 200, created.text
        path = f"/v1/conversations/{created.json()['id']}/items"
        listed = (await at.http.get(path, params={"order": "asc"})).json()
        assert listed["data"][0]["id"] == id
        assert (await at.http.get(f"{path}/{id[:8_000]}")).status_code == 404
        rest = (await at.http.get(path, params={"order": "asc", "after": id})).json()
        assert [item["content"][0]["text"] for item in rest["data"]] == ["b"]
        assert (await at.http.get(f"{path}/{id}")).json()["id"] == id


async def test_another_owner_finds_neither_a_response_nor_its_items(tmp_path: Path) -> None:
    async with desk(tmp_path, keys=True, up=Site(completion("one"))) as at:
        ada, eve = await at.key("ada"), await at.key("eve")
        first = (await ask(at, ada, input="a")).json()
        path = f"/v1/responses/{first['id']}"
        assert (await at.http.get(path, headers=ada)).status_code == 200
        assert (await at.http.get(path, headers=eve)).status_code == 404
        assert (await at.http.delete(path, headers=eve)).status_code == 404
        assert (await at.http.get(f"{path}/input_items", headers=eve)).status_code == 404
        assert (await ask(at, eve, previous_response_id=first["id"])).status_code == 400
        reference = [{"type": "item_reference", "id": first["output"][0]["id"]}]
        assert (await ask(at, eve, input=reference)).status_code == 404
        assert (await at.http.get(path, headers=ada)).status_code == 200


async def test_a_prompt_is_counted_with_all_that_it_refers_to(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        first = (await ask(at, input="word " * 100)).json()
        body = {"model": "up/m", "input": "hi", "previous_response_id": first["id"]}
        counted = (await at.http.post("/v1/responses/input_tokens", json=body)).json()
        assert counted["object"] == "response.input_tokens"
        assert counted["input_tokens"] > 100


@pytest.mark.parametrize("field", ["previous_response_id", "store", "background", "conversation"])
async def test_a_field_of_the_state_with_another_type_is_refused_by_name(tmp_path: Path, field: str) -> None:
    wrong: dict[str, Any] = {field: {"a": 1}}
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        refused = await ask(at, **wrong)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)


async def test_an_owner_keeps_his_newest_responses_and_none_that_is_too_large(tmp_path: Path) -> None:
    limits = {"owner_responses": 5_000, "stored_response": 3_000}
    async with desk(tmp_path, up=Site(completion("one")), limits=limits) as at:
        ids = [(await ask(at, input="a" * 500)).json()["id"] for _ in range(8)]
        large = (await ask(at, input="a" * 3_000)).json()["id"]
        statuses = [(await at.http.get(f"/v1/responses/{id}")).status_code for id in (*ids, large)]
        assert statuses[0] == 404
        assert statuses[7] == 200
        assert statuses[8] == 404


async def test_a_chain_of_responses_is_kept_as_long_as_its_last_one(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        first = (await ask(at, input="a")).json()["id"]
        other = (await ask(at, input="a")).json()["id"]
        last = (await ask(at, input="b", previous_response_id=first)).json()["id"]
        clock = at.hub.store.responses.clock
        is_older = responses.c.id != bindparam("last")
        age = at.hub.store.database.compile(
            update(responses).where(is_older).values(created_at=bindparam("at"))
        )
        old = {"at": clock() - 40 * 86_400, "last": last}
        await at.hub.store.write(lambda connection: connection.execute(age, old))

        async def is_purged() -> bool:
            await at.hub.retention.purge()  # which does nothing while the one of the hub's start goes on
            return (await at.http.get(f"/v1/responses/{other}")).status_code == 404

        await until(is_purged)
        assert (await at.http.get(f"/v1/responses/{first}")).status_code == 200


def test_the_state_is_configured() -> None:
    config = parse_config({"retention": {"responses": "7d"}, "limits": {"owner_responses": 5}})
    assert config.retention_periods["responses"] == 7 * 86_400
    assert config.limits.owner_responses == 5


async def test_truncation_auto_leaves_the_first_responses_of_a_long_chain_out(tmp_path: Path) -> None:
    long = "x" * 3_000
    call = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
    answers = Site(completion("one"), completion("two"), completion("three"), completion("four"))
    async with desk(tmp_path, up=answers, limits={"gateway_body": 7_000}) as at:
        fields: dict[str, Any] = {}
        id = ""
        for word in ("a", "b", "c"):
            response = await ask(at, input=f"{word}{long}", tools=call, **fields)
            assert response.status_code == 200, response.text
            id = response.json()["id"]
            fields = {"previous_response_id": id, "truncation": "auto"}
        assert [text[0] for _, text in prompt(at)] == ["b", "t", "c"]
        refused = await ask(at, input="d", previous_response_id=id)
        assert refused.status_code == 413, refused.text
        wrong = await ask(at, input="d", previous_response_id=id, truncation="some")
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "truncation")


async def test_a_chain_is_not_cut_between_a_call_and_its_output(tmp_path: Path) -> None:
    long = "x" * 3_000
    async with desk(tmp_path, up=Site(completion("one")), limits={"gateway_body": 7_000}) as at:
        first = (await ask(at, input=f"a{long}")).json()
        called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
        question = [{"role": "user", "content": f"b{long}"}, called]
        second = (await ask(at, input=question, previous_response_id=first["id"])).json()
        output = {"type": "function_call_output", "call_id": "c", "output": long}
        fields: dict[str, Any] = {"truncation": "auto"}
        third = await ask(at, input=[output], previous_response_id=second["id"], **fields)
        assert third.status_code == 200, third.text
        fourth = await ask(at, input="d", previous_response_id=third.json()["id"], **fields)
        assert fourth.status_code == 413, fourth.text
        assert "too long to be continued" in fourth.json()["error"]["message"]


async def test_what_only_openais_own_tools_have_is_not_included_and_said_so(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one"))) as at:
        wanted = ["reasoning.encrypted_content", "web_search_call.action.sources"]
        response = await ask(at, input="a", include=wanted)
        assert response.headers["x-dragoman-dropped"] == "include.web_search_call.action.sources"
        wrong = await ask(at, input="a", include=[5])
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "include[0]")

"""What bounds the state of the Responses API: items referred to, owners' bytes and shares, memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.server.gateway.responses import background
from dragoman.server.gateway.responses.creation import copied_output
from tests.gateway.metered_hub import Site, completion, desk, holding, tokens
from tests.gateway.test_responses import ask
from tests.gateway.test_responses_background import until_ended
from tests.gateway.test_responses_socket import connected
from tests.waiting import until


def referring(*ids: str) -> list[dict[str, Any]]:
    """Input that refers to items, and has a message."""
    return [*({"type": "item_reference", "id": id} for id in ids), {"role": "user", "content": "b"}]


async def test_what_a_request_refers_to_is_bounded_in_bytes_however_short_it_is(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(completion("one")), limits={"gateway_body": 12_000}) as at:
        large = {"role": "user", "content": "x" * 5_000, "id": "msg_large"}
        for number in range(12):  # each has a short item in a response of more than 10,000 bytes
            small = {"role": "user", "content": "a", "id": f"msg_{number}"}
            assert (await ask(at, input=[large, small], instructions="i" * 5_000)).status_code == 200
        assert (await ask(at, input=referring("msg_large", "msg_large"))).status_code == 200
        for ids in (["msg_large"] * 3, ["msg_large"] * 100, [f"msg_{number}" for number in range(12)]):
            refused = await ask(at, input=referring(*ids))
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
        assert (await ask(at, input=referring("msg_1", "msg_2"))).status_code == 200


async def test_responses_in_the_background_count_among_the_bytes_of_their_owner(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one")), limits={"owner_responses": 5_000}) as at:
        ids = []
        for _ in range(8):
            ids.append((await ask(at, input="a" * 500, background=True)).json()["id"])
            await until_ended(at, ids[-1])
        statuses = [(await at.http.get(f"/v1/responses/{id}")).status_code for id in ids]
        assert (statuses[0], statuses[-1]) == (404, 200)


async def test_one_owner_does_not_take_all_responses_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MAX_OWNER_ACTIVE", 2)
    async with desk(tmp_path, keys=True, up=Site(holding(tokens("one", over=False)))) as at:
        ada, eve = await at.key("ada"), await at.key("eve")
        begun = [await ask(at, key, input="a", background=True) for key in (ada, ada, ada, eve)]
        assert [each.status_code for each in begun] == [200, 200, 429, 200]
        await at.http.post(f"/v1/responses/{begun[0].json()['id']}/cancel", headers=ada)

        async def is_accepted() -> bool:
            return bool((await ask(at, ada, input="a", background=True)).status_code == 200)

        await until(is_accepted)  # the cancelled one is stored before its place is free


def test_a_remembered_item_does_not_keep_the_response_in_memory_that_it_was_in() -> None:
    items = [{"type": "message", "id": "msg_1"}, {"type": "reasoning", "id": "rs_1"}]
    document = msgspec.json.encode({"instructions": "i" * 100_000, "output": items})
    copied = copied_output(document)
    assert [msgspec.json.decode(item) for item in copied] == items
    assert max(len(bytes(memoryview(item).obj)) for item in copied) < 100


async def test_a_lane_has_a_short_name_since_each_event_repeats_it(tmp_path: Path) -> None:
    async with desk(tmp_path, up=Site(tokens("one"))) as at, connected(at) as client:
        body = {"type": "response.create", "model": "up/m", "input": "a", "stream_id": "x" * 201}
        await client.send(msgspec.json.encode(body).decode())
        error = msgspec.json.decode(await client.recv())
        assert (error["status"], error["error"]["param"]) == (400, "stream_id")
        assert "stream_id" not in error

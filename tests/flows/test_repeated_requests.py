"""The same request again, after a lost connection or from an old tab: one run, and its answer again."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.flows.test_following import LONG, WHOLE, cut, idle, rest, streaming, until
from tests.serving import Frames, Served, ask, frames_in, serving, text_of, types
from tests.waiting import LIMIT

PAYING = Path(__file__).with_name("paying_operation.py")
DANGER = Path(__file__).with_name("approval_operation.py")
PAY: list[dict[str, Any]] = [
    {"tools": [{"name": "bank_pay", "input": {"amount": 5}, "id": "c1"}]},
    {"text": "Paid."},
]
WIPE: list[dict[str, Any]] = [
    {"tools": [{"name": "danger_wipe", "input": {"disk": "a"}, "id": "c1"}]},
    {"text": "Wiped."},
]
COLOUR: list[dict[str, Any]] = [
    {"tools": [{"name": "colour", "input": {}, "id": "c1"}]},
    {"text": "Blue it is."},
]
FORMS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "in the form of an edit": {"messageId": "u-pay"},
    "with the history": {"history": True},
    "as the only message": {"single": True},
}


def form_of(form: str) -> dict[str, Any]:
    """The body of the request in one of its forms."""
    body = ask("pay", **{name: value for name, value in FORMS[form].items() if name == "messageId"})
    if "history" in FORMS[form]:
        body["messages"].insert(0, {"id": "u-0", "role": "user", "parts": [{"type": "text", "text": "x"}]})
    if "single" in FORMS[form]:
        body["message"] = body.pop("messages")[0]
    return body


async def run_count(hub: Served) -> int:
    return len(await hub.runs())


def payments(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the payments."""
    monkeypatch.setenv("PAYMENTS", str(tmp_path / "payments"))
    return tmp_path / "payments"


@pytest.mark.parametrize("form", FORMS)
async def test_a_message_sent_again_gets_its_answer_and_deletes_and_runs_nothing(
    tmp_path: Path, paid: Path, form: str
) -> None:
    steps = [*PAY, {"text": "Later."}]
    async with serving(tmp_path, steps, operations=[str(PAYING)], pinned=["bank.pay"]) as hub:
        first = await hub.post(ask("pay"))
        assert text_of(await hub.post(form_of(form))) == "Paid."
        assert text_of(await hub.chat("more")) == "Later."
        before = await hub.messages()
        again = await hub.post(form_of(form))
        assert text_of(again) == "Paid."
        assert again[0] == {**first[0], "messageMetadata": before[1]["metadata"]}
        assert again[-1] == {**first[-1], "messageMetadata": before[1]["metadata"]}
        assert await hub.messages() == before
        assert (await run_count(hub), payments(paid)) == (2, ["5"])
    async with serving(tmp_path, operations=[str(PAYING)], pinned=["bank.pay"]) as hub:
        assert text_of(await hub.post(form_of(form))) == "Paid."
        assert (await run_count(hub), payments(paid)) == (2, ["5"])


async def test_one_message_sent_five_times_at_once_makes_one_run(tmp_path: Path, paid: Path) -> None:
    async with serving(tmp_path, PAY, operations=[str(PAYING)], pinned=["bank.pay"]) as hub:
        answers = await asyncio.gather(*(hub.post(ask("pay")) for _ in range(5)))
        assert [text_of(frames) for frames in answers] == ["Paid."] * 5
        assert len({frames[0]["messageId"] for frames in answers}) == 1
        assert (await run_count(hub), payments(paid)) == (1, ["5"])


async def test_a_message_sent_again_follows_the_run_that_answers_it(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG]) as hub:
        async with streaming(hub, "POST", "/api/chat", json=ask("go")) as pieces:
            seen = await until(pieces, "word3")
            again = asyncio.create_task(hub.post(ask("go")))
            frames = frames_in(": " + seen.split(": ", 1)[1] + await rest(pieces))
        assert text_of(frames) == text_of(await again) == WHOLE
        assert await run_count(hub) == 1


async def test_a_message_sent_again_after_a_lost_connection_keeps_the_run_going(tmp_path: Path) -> None:
    async with serving(tmp_path, [LONG], disconnect_grace=5) as hub:
        await cut(hub)
        assert text_of(await hub.post(ask("go"))) == WHOLE
        assert await run_count(hub) == 1


async def test_a_message_of_other_content_is_an_edit(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "One."}, {"text": "Two."}, {"text": "Edited."}]) as hub:
        await hub.post(ask("first", id="u"))
        await hub.chat("second")
        assert text_of(await hub.post(ask("changed", id="u", messageId="u"))) == "Edited."
        assert [message["id"] for message in (await hub.messages())[::2]] == ["u"]


async def test_a_message_whose_answer_failed_before_any_call_is_answered_again(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"error": {"message": "no", "category": "bad_request"}}, {"text": "Now."}]
    async with serving(tmp_path, steps) as hub:
        assert types(await hub.post(ask("go")))[-2:] == ["error", "finish"]
        assert text_of(await hub.post(ask("go"))) == "Now."
        assert len(await hub.messages()) == 2


async def test_an_answer_that_failed_after_a_call_is_sent_again_with_its_error(
    tmp_path: Path, paid: Path
) -> None:
    steps: list[dict[str, Any]] = [PAY[0], {"error": {"message": "no", "category": "bad_request"}}]
    async with serving(tmp_path, steps, operations=[str(PAYING)], pinned=["bank.pay"]) as hub:
        first = await hub.post(ask("pay"))
        again = await hub.post(ask("pay"))
        assert [each for each in again if each["type"] == "error"] == [
            each for each in first if each["type"] == "error"
        ]
        assert (await run_count(hub), payments(paid)) == (1, ["5"])


async def waiting_body(hub: Served, **fields: Any) -> dict[str, Any]:
    """The body that continues the waiting answer, its last part changed by `fields`."""
    question, waiting = await hub.messages()
    part = waiting["parts"][-1]
    if "approval" in fields:
        fields["approval"] = {**part["approval"], **fields["approval"]}
    parts = [*waiting["parts"][:-1], {**part, **fields}]
    messages = [question, {**waiting, "parts": parts}]
    return {"id": "s", "messages": messages, "messageId": waiting["id"], "trigger": "submit-message"}


APPROVED = {"state": "approval-responded", "approval": {"approved": True}}
DENIED = {"state": "approval-responded", "approval": {"approved": False}}


async def approve(hub: Served, body: dict[str, Any]) -> Frames:
    frames = await hub.post(body)
    assert types(frames)[:3] == ["start", "tool-output-available", "start-step"]
    return frames


async def test_an_approval_sent_again_gets_the_rest_of_its_message(tmp_path: Path) -> None:
    steps = [*WIPE, {"text": "Another answer."}]
    async with serving(tmp_path, steps, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        await hub.chat("wipe")
        body, other = await waiting_body(hub, **APPROVED), await waiting_body(hub, **DENIED)
        first, after = await approve(hub, body), await hub.messages()
        again = await approve(hub, body)
        assert (text_of(again), types(again)) == (text_of(first), types(first))
        assert (await hub.http.post("/api/chat", json=other)).status_code == 409
        assert (await run_count(hub), await hub.messages()) == (2, after)
        assert text_of(await hub.chat("next")) == "Another answer."
        for late in (body, other):
            assert (await hub.http.post("/api/chat", json=late)).status_code == 409


async def test_an_approval_sent_five_times_at_once_counts_once(tmp_path: Path) -> None:
    async with serving(tmp_path, WIPE, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        await hub.chat("wipe")
        body = await waiting_body(hub, **APPROVED)
        answers = await asyncio.gather(*(approve(hub, body) for _ in range(5)))
        assert [text_of(frames) for frames in answers] == ["Wiped."] * 5
        assert await run_count(hub) == 2


async def test_an_approval_that_was_answered_elsewhere_makes_no_request(tmp_path: Path) -> None:
    async with serving(tmp_path, WIPE, operations=[str(DANGER)], pinned=["danger.wipe"]) as hub:
        [request] = [each for each in await hub.chat("wipe") if each["type"] == "tool-approval-request"]
        old_tab = [await waiting_body(hub, **APPROVED), await waiting_body(hub, **DENIED)]
        await hub.http.post(f"/api/approvals/{request['approvalId']}", json={"approved": True})
        async with asyncio.timeout(LIMIT):
            while (await hub.messages())[1]["parts"][-1].get("text") != "Wiped.":
                await idle(hub)
        await idle(hub)
        assert text_of(await approve(hub, old_tab[0])) == "Wiped."
        assert (await hub.http.post("/api/chat", json=old_tab[1])).status_code == 409
        assert await run_count(hub) == 2


async def test_an_old_tab_does_not_stop_a_run_that_nobody_follows(tmp_path: Path) -> None:
    steps = [WIPE[0], {"text": [f"word{number} " for number in range(40)], "delay": 0.02}]
    async with serving(
        tmp_path, steps, operations=[str(DANGER)], pinned=["danger.wipe"], disconnect_grace=30
    ) as hub:
        await hub.chat("wipe")
        body, other = await waiting_body(hub, **APPROVED), await waiting_body(hub, **DENIED)
        async with streaming(hub, "POST", "/api/chat", json=body) as pieces:
            await until(pieces, "word3")
        assert (await hub.http.post("/api/chat", json=other)).status_code == 409
        again = await approve(hub, body)
        assert text_of(again) == WHOLE
        assert await run_count(hub) == 2


async def test_an_output_of_a_client_side_tool_sent_again_makes_no_request(tmp_path: Path) -> None:
    tools = [{"name": "colour", "inputSchema": {"type": "object"}}]
    async with serving(tmp_path, COLOUR) as hub:
        await hub.post(ask("which", tools=tools))
        blue = {"tools": tools, **await waiting_body(hub, state="output-available", output="blue")}
        red = {"tools": tools, **await waiting_body(hub, state="output-available", output="red")}
        first = await asyncio.gather(*(hub.post(blue) for _ in range(3)))
        again = await hub.post(blue)
        assert [text_of(frames) for frames in (*first, again)] == ["Blue it is."] * 4
        # Who begins or follows the run may hear of the output; the answer that is replayed begins behind it.
        assert types(again) == [kind for kind in types(first[0]) if kind != "tool-output-available"]
        assert (await hub.http.post("/api/chat", json=red)).status_code == 409
        messages = await hub.messages()
        complete = {"id": "s", "messages": messages, "messageId": messages[-1]["id"], "tools": tools}
        assert (await hub.http.post("/api/chat", json=complete)).status_code == 409
        assert await run_count(hub) == 2

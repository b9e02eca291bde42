"""Exports, imports and shared links of sessions."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dragoman.session_ids import hub_session_id
from dragoman.store.sessions.sessions import Session
from tests.serving import Served, serving

HOSTILE = "<script>alert(1)</script> \"&' </pre><img src=x onerror=alert(1)>"
SECRET = "sk-" + "a1B2c3D4e5" * 4


def chatgpt_node(id: str, role: str, *, parent: str) -> dict[str, Any]:
    content = {"content_type": "text", "parts": [f"text {id}"]}
    return {"parent": parent, "message": {"id": id, "author": {"role": role}, "content": content}}


CHATGPT = {
    "title": "Rivers",
    "current_node": "c",
    "mapping": {
        "root": {"message": None, "parent": None},
        "a": chatgpt_node("a", "user", parent="root"),
        "b": chatgpt_node("b", "assistant", parent="a"),
        "c": chatgpt_node("c", "assistant", parent="a"),
    },
}
OPENCODE = {
    "info": {"id": "ses_1", "title": "Refactor"},
    "messages": [
        {"info": {"id": "m1", "role": "user"}, "parts": [{"type": "text", "text": "go"}]},
        {"info": {"id": "m2", "role": "assistant"}, "parts": [
            {"type": "step-start"}, {"type": "reasoning", "text": "hm"},
            {"type": "tool", "tool": "bash", "callID": "c1",
             "state": {"status": "completed", "input": {"command": "ls"}, "output": "README"}},
            {"type": "text", "text": "done"}]},
    ],
}  # fmt: skip


async def export(hub: Served, format: str, session: str = "s") -> str:
    response = await hub.http.get(f"/api/sessions/{session}/export?format={format}")
    assert response.status_code == 200, response.text
    return response.text


async def load(hub: Served, body: Any, query: str = "") -> Any:
    content = body if isinstance(body, str | bytes) else msgspec.json.encode(body)
    return await hub.http.post(f"/api/sessions/import{query}", content=content)


async def test_a_session_is_the_same_after_export_and_import(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"text": "Look", "reasoning": "hm", "tools": [{"name": "hub_list"}]},
        {"text": "One é 🙂 \u2028."},
        {"text": "Two"},
    ]
    async with serving(tmp_path, steps) as hub:
        await hub.chat("a\nb")
        await hub.chat(HOSTILE)
        await hub.http.patch("/api/sessions/s", json={"title": "T", "labels": ["x"], "maxSteps": 5})
        lines = await export(hub, "jsonl")
        imported = await load(hub, lines, "?id=copy")
        assert (imported.status_code, imported.json()["messages"]) == (201, 4)
        assert await hub.messages("copy") == await hub.messages()
        copied = await export(hub, "jsonl", "copy")
        assert copied.splitlines()[1:] == lines.splitlines()[1:]
        settings = (await hub.http.get("/api/sessions/copy")).json()
        assert (settings["title"], settings["labels"], settings["maxSteps"]) == ("T", ["x"], 5)
        assert (await load(hub, lines, "?id=copy")).status_code == 409
        found = await hub.http.get("/api/search?q=onerror&session=copy")
        assert [each["sessionId"] for each in found.json()["found"]] == ["copy"]


async def test_pages_and_documents_escape_what_was_said(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": HOSTILE}]) as hub:
        await hub.chat(HOSTILE)
        response = await hub.http.get("/api/sessions/s/export?format=html")
        assert "<script" not in response.text
        assert "<img" not in response.text
        assert response.text.count("&lt;script&gt;alert(1)") == 4
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "sandbox" in response.headers["content-security-policy"]
        assert (await export(hub, "markdown")).startswith("# \\<script\\>")
        assert (await hub.http.get("/api/sessions/s/export?format=exe")).status_code == 400
        assert (await hub.http.get("/api/sessions/none/export")).status_code == 404


async def test_what_tools_and_servers_give_is_no_markdown_of_the_document(tmp_path: Path) -> None:
    hostile = "](javascript:alert(1)) <b>\n# x*"
    parts = [
        {"type": "source-url", "sourceId": "s", "url": "javascript:alert(1)", "title": hostile},
        {"type": "source-url", "sourceId": "t", "url": "https://x.example/a_b?c=*", "title": "T"},
        {"type": "file", "mediaType": "text/plain", "url": "javascript:alert(2)", "filename": hostile},
        {"type": "tool-x", "toolCallId": "c", "state": "output-error", "input": {}, "errorText": hostile},
    ]
    lines = [
        {"format": "dragoman-session", "version": 1, "title": hostile},
        {"id": "m", "role": "assistant", "parts": parts},
    ]
    async with serving(tmp_path) as hub:
        await load(hub, b"\n".join(map(msgspec.json.encode, lines)), "?id=s")
        document = await export(hub, "markdown")
    escaped = r"\](javascript:alert(1)) \<b\> \# x\*"
    assert [line for line in document.splitlines() if line and line not in ("```json", "{}", "```")] == [
        f"# {escaped}",
        "## Assistant",
        f"*source: {escaped} javascript:alert(1)*",
        "*source: T <https://x.example/a_b?c=*>*",
        f"*file {escaped} (text/plain): javascript:alert(2)*",
        "**x** (output-error)",
        f"Error: {escaped}",
    ]


@pytest.mark.parametrize(
    ("file", "title", "texts"),
    [
        (CHATGPT, "Rivers", ["text a", "text c"]),
        ([CHATGPT], "Rivers", ["text a", "text c"]),
        (OPENCODE, "Refactor", ["go", "done"]),
    ],
)
async def test_exports_of_other_programs_are_read(
    tmp_path: Path, file: Any, title: str, texts: list[str]
) -> None:
    async with serving(tmp_path) as hub:
        imported = await load(hub, file)
        assert imported.status_code == 201, imported.text
        messages = await hub.messages(imported.json()["id"])
        assert [message["parts"][-1]["text"] for message in messages] == texts
        listed = (await hub.http.get("/api/sessions")).json()["sessions"]
        assert [session["title"] for session in listed] == [title]


@pytest.mark.parametrize(
    "file",
    [
        "", "[]", "{}", "nonsense", "[1]", '{"messages": [1]}', b"\xff\xfe", '{"mapping": {}}' * 2,
        '{"messages": [{"id": "a", "role": "user", "parts": [{"type": "x"}]}]}',
        '{"messages": [{"id": "a", "role": "user", "parts": []}, {"id": "a", "role": "user", "parts": []}]}',
        '{"messages": [{"id": "", "role": "user", "parts": []}]}', "[" * 100_000,
        '{"format":"dragoman-session","version":2}', '{"format":"dragoman-session","version":1}\n{"id":',
        '{"info": {}, "messages": [{}]}', "[[]]", '[{"mapping": {}}, 7]', '[{"mapping": {}}', '[{}]]',
        '{"format":"dragoman-session","version":1,"labels":["' + "x" * 65 + '"]}',
    ],
)  # fmt: skip
async def test_a_file_that_is_no_session_is_refused_and_leaves_nothing(tmp_path: Path, file: Any) -> None:
    async with serving(tmp_path) as hub:
        answer = await load(hub, file)
        assert answer.status_code in (400, 413), answer.text
        assert (await hub.http.get("/api/sessions")).json()["sessions"] == []


@pytest.mark.promise("imports")
async def test_every_conversation_of_a_file_becomes_a_session_once(tmp_path: Path) -> None:
    more = [{**CHATGPT, "title": f"No. {number}"} for number in range(3)]
    async with serving(tmp_path) as hub:
        assert (await load(hub, [more[0], 7])).status_code == 400
        assert (await hub.http.get("/api/sessions")).json()["sessions"] == []
        assert (await load(hub, more[:2], "?id=x")).status_code == 400
        first = (await load(hub, more[:2])).json()
        assert [each["messages"] for each in first["sessions"]] == [2, 2]
        again = await load(hub, more)
        assert again.status_code == 201, again.text
        report = again.json()
        ids = [each["id"] for each in first["sessions"]]
        assert (len(report["sessions"]), report["existing"], report["messages"]) == (1, ids, 2)
        listed = (await hub.http.get("/api/sessions")).json()["sessions"]
        assert sorted(each["title"] for each in listed) == ["No. 0", "No. 1", "No. 2"]

        broken = [more[0], {**CHATGPT, "title": "new"}, {"messages": [{"id": ""}]}]
        refused = await load(hub, broken)
        assert refused.status_code == 400
        assert "conversation 3: " in refused.json()["error"]["message"]
        assert "the 2 before it are imported" in refused.json()["error"]["message"]
        once_more = await load(hub, more[0])
        assert (once_more.status_code, ids[0] in once_more.json()["error"]["message"]) == (409, True)
        assert (await load(hub, more[0], "?id=copy")).status_code == 201


async def test_an_import_that_a_crash_has_cut_off_is_begun_anew(tmp_path: Path) -> None:
    content = b'{"format":"dragoman-session","version":1}\n' + msgspec.json.encode(
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}
    )
    id = f"import-{hashlib.sha256(content).hexdigest()[:24]}"
    for expected in (201, 409):
        async with serving(tmp_path) as hub:
            assert (await load(hub, content)).status_code == expected, "what is imported stays"
            [message] = await hub.messages(id)
            assert message["parts"][0]["text"] == "hello"
    async with serving(tmp_path) as hub:
        sessions = hub.hub.store.sessions
        assert await hub.hub.store.session_deletion.delete(hub_session_id(id, owner="local"))
        now = sessions.now()
        cut_off = Session(
            id=hub_session_id(id, owner="local"),
            owner="local",
            kind="importing",
            created_at=now,
            updated_at=now,
        )
        await sessions.create(cut_off)
        assert (await load(hub, content)).status_code == 409, "it may be under way"
    async with serving(tmp_path) as hub:
        is_alone = hub.hub.store.membership is None  # else another host may be importing it
        assert (await load(hub, content)).status_code == (201 if is_alone else 409)
        assert len(await hub.messages(id)) == is_alone


async def test_another_owner_imports_the_same_file(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as hub:
        for owner in ("ann", "bob"):
            _, key = await hub.hub.store.keys.create(owner)
            headers = {"authorization": f"Bearer {key}"}
            content = msgspec.json.encode(CHATGPT)
            answer = await hub.http.post("/api/sessions/import", content=content, headers=headers)
            assert answer.status_code == 201, answer.text
            listed = (await hub.http.get("/api/sessions", headers=headers)).json()["sessions"]
            assert [each["id"] for each in listed] == [answer.json()["id"]]


async def test_an_upload_that_is_cut_off_leaves_nothing(tmp_path: Path) -> None:
    line = msgspec.json.encode({"id": "m", "role": "user", "parts": [{"type": "text", "text": "x" * 70_000}]})
    head = b'{"format":"dragoman-session","version":1}\n'
    async with serving(tmp_path) as hub:
        _, writer = await asyncio.open_connection("127.0.0.1", hub.http.base_url.port)
        writer.write(
            b"POST /api/sessions/import HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9000000\r\n\r\n"
        )
        for number in range(20):
            writer.write(head if number == 0 else line.replace(b'"m"', b'"m%d"' % number) + b"\n")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        whole = await load(hub, head + line)
        assert whole.status_code == 201
        assert [each["id"] for each in (await hub.http.get("/api/sessions")).json()["sessions"]] == [
            whole.json()["id"]
        ]


async def test_a_chatgpt_file_with_a_circle_ends(tmp_path: Path) -> None:
    circle = {**CHATGPT, "mapping": {"c": {"parent": "c", "message": None}}}
    async with serving(tmp_path) as hub:
        assert (await load(hub, circle)).json()["messages"] == 0


async def share(hub: Served, body: Any = None, *, status: int = 201) -> Any:
    response = await hub.http.post("/api/sessions/s/share", json=body or {})
    assert response.status_code == status, response.text
    return response.json()


async def test_a_link_shows_the_session_as_it_was_until_it_is_revoked(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"text": f"Key {SECRET}", "tools": [{"name": "hub_list"}]},
        {"text": "One"},
        {"text": "Two"},
    ]
    async with serving(tmp_path, steps) as hub:
        await hub.chat("a")
        made, with_tools = await share(hub), await share(hub, {"tools": True})
        await hub.chat("private")
        page = await hub.http.get(made["path"])
        assert (page.status_code, page.headers["x-robots-tag"]) == (200, "noindex, nofollow")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "One" in page.text
        assert [word for word in ("private", "Two", SECRET, "hub_list", "<script") if word in page.text] == []
        assert "hub_list" in (await hub.http.get(with_tools["path"])).text
        as_json = (await hub.http.get(made["path"] + "?format=json")).json()
        assert [message["role"] for message in as_json["messages"]] == ["user", "assistant"]
        assert SECRET not in msgspec.json.encode(as_json).decode()
        listed = (await hub.http.get("/api/sessions/s/share")).json()["shares"]
        assert [each["id"] for each in listed] == [made["id"], with_tools["id"]]
        token = made["path"].rpartition("/")[2]
        rows = await hub.hub.store.database.read(lambda found: found.fetch_all("SELECT * FROM shares", {}))
        assert rows
        assert token not in str(rows)
        assert (await hub.http.delete(f"/api/sessions/s/share/{made['id']}")).status_code == 204
        assert (await hub.http.get(made["path"])).status_code == 404
        assert (await hub.http.delete(f"/api/sessions/s/share/{made['id']}")).status_code == 404
        await hub.http.delete("/api/sessions/s")
        assert (await hub.http.get(with_tools["path"])).status_code == 404


async def test_links_of_a_session_are_its_owners_and_end(tmp_path: Path) -> None:
    async with serving(tmp_path, [{"text": "One"}], keys=True) as hub:
        keys = {owner: await hub.hub.store.keys.create(owner) for owner in ("ann", "bob")}
        ann, bob = ({"authorization": f"Bearer {keys[owner][1]}"} for owner in ("ann", "bob"))
        body = {
            "id": "s",
            "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "hi"}]}],
        }
        await hub.http.post("/api/chat", json=body, headers=ann)
        for method, path in (("POST", "share"), ("GET", "share"), ("DELETE", "share/x"), ("GET", "export")):
            response = await hub.http.request(method, f"/api/sessions/s/{path}", headers=bob)
            assert response.status_code == 404, path
        refused = await hub.http.post("/api/sessions/s/share", json={"expiresIn": 0}, headers=ann)
        assert refused.status_code == 400
        made = (await hub.http.post("/api/sessions/s/share", json={"expiresIn": 60}, headers=ann)).json()
        assert (await hub.http.get(made["path"])).status_code == 200
        for path in ("/share/x", "/share/" + "x" * 5_000, made["path"] + "x"):
            assert (await hub.http.get(path)).status_code == 404
        hub.hub.store.sessions._clock = lambda: made["expiresAt"] + 1
        assert (await hub.http.get(made["path"])).status_code == 404

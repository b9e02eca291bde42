"""Exports, imports and shared links of sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

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
        assert (await export(hub, "markdown")).startswith("# <script>")
        assert (await hub.http.get("/api/sessions/s/export?format=exe")).status_code == 400
        assert (await hub.http.get("/api/sessions/none/export")).status_code == 404


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
        '{"info": {}, "messages": [{}]}', [CHATGPT, CHATGPT],
        '{"format":"dragoman-session","version":1,"labels":["' + "x" * 65 + '"]}',
    ],
)  # fmt: skip
async def test_a_file_that_is_no_session_is_refused_and_leaves_nothing(tmp_path: Path, file: Any) -> None:
    async with serving(tmp_path) as hub:
        assert (await load(hub, file)).status_code in (400, 413)
        assert (await hub.http.get("/api/sessions")).json()["sessions"] == []


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

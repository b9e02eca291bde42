"""The console over HTTP: its pages and their headers, and signing in with a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dragoman.server import browser_sessions
from dragoman.server.browser_sessions import CSRF_HEADER
from dragoman.server.console.pages import SECURITY_POLICY, ConsolePages, accepted_encodings
from dragoman.store.accounts import browser_sessions as stored_sessions
from tests.server.openapi import operation, read, validator
from tests.serving import Served, ask, serving

SESSION = "/api/console/session"
LINKS = "/api/console/links"
COOKIE = r"dragoman_console_{port}=[\w-]{{43}}; Path=/; Max-Age=43\d\d\d; HttpOnly; SameSite=Strict"


@pytest.fixture(autouse=True)
def nothing_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request asks the database who is signed in."""
    monkeypatch.setattr(browser_sessions, "RECHECK_INTERVAL", 0.0)


async def sign_in(served: Served, **body: str) -> tuple[dict[str, Any], dict[str, str], str]:
    """Sign in; the answer, what a page sends from then on, and the cookie as it was set."""
    response = await served.http.post(SESSION, json=body)
    answer: dict[str, Any] = read(response, operation("post", SESSION))
    cookie = response.headers["set-cookie"]
    served.http.cookies.clear()
    return answer, {"cookie": cookie.partition(";")[0], CSRF_HEADER: answer["csrf"]}, cookie


@pytest.mark.promise("console-sign-in")
async def test_a_key_is_exchanged_for_a_cookie_that_is_valid_under_api_as_long_as_the_key(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, [{"text": "Hello."}], keys=True) as served:
        key, secret = await served.hub.store.keys.create("ada", scopes=["chat"])
        answer, page, cookie = await sign_in(served, key=secret)
        assert re.fullmatch(COOKIE.format(port=served.url.rpartition(":")[2]), cookie)
        assert secret not in cookie
        assert (answer["owner"], answer["scopes"], answer["keyId"]) == ("ada", ["chat"], key.id)
        seen = await served.http.get(SESSION, headers=page)
        assert read(seen, operation("get", SESSION)) == answer
        assert (await served.http.post("/api/chat", json=ask("hi"), headers=page)).status_code == 200
        assert (await served.http.get("/api/sessions", headers=page)).json()["sessions"][0]["id"] == "s"
        assert (await served.http.get("/api/config", headers=page)).status_code == 403  # another scope
        assert (await served.http.get("/v1/models", headers=page)).status_code == 401  # not under /api

        await served.hub.store.keys.rotate(key.id, 0.0)
        assert (await served.http.get("/api/sessions", headers=page)).status_code == 401
        _, secret = await served.hub.store.keys.rotate(key.id, 0.0)
        _, page, _ = await sign_in(served, key=secret)
        await served.hub.store.keys.revoke(key.id)
        assert (await served.http.get("/api/sessions", headers=page)).status_code == 401
        assert (await served.http.get(SESSION, headers=page)).json()["signedIn"] is False


@pytest.mark.promise("console-csrf")
async def test_a_cookie_alone_changes_nothing_and_is_refused_to_other_pages(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as served:
        _, secret = await served.hub.store.keys.create("ada", scopes=["chat", "admin"])
        _, page, _ = await sign_in(served, key=secret)
        cookie = {"cookie": page["cookie"]}
        foreign = {**page, "origin": "http://127.0.0.1:1"}
        for status, headers in (
            (403, cookie),
            (403, {**cookie, CSRF_HEADER: "0" * 64}),
            (403, {**page, "sec-fetch-site": "same-site"}),
            (403, {**page, "sec-fetch-site": "cross-site"}),
            (403, foreign),
            (201, {**page, "origin": served.url}),
            (409, {**foreign, "sec-fetch-site": "same-origin"}),  # a proxy replaced `Host`; "a" is there
        ):
            response = await served.http.post("/api/sessions", json={"id": "a"}, headers=headers)
            assert response.status_code == status, headers
        assert (await served.http.get("/api/sessions", headers=foreign)).status_code == 403
        assert (await served.http.get("/api/sessions", headers=cookie)).status_code == 200
        assert (await served.http.delete(SESSION, headers=cookie)).status_code == 403
        foreign_key = await served.http.post(
            SESSION, json={"key": secret}, headers={"origin": "http://evil.example"}
        )
        assert foreign_key.status_code == 403
        signed_out = await served.http.delete(SESSION, headers=page)
        assert "Max-Age=0" in signed_out.headers["set-cookie"]
        assert (await served.http.get("/api/sessions", headers=page)).status_code == 401
        assert (await served.http.delete(SESSION, headers=page)).status_code == 204


async def test_a_link_signs_in_once_and_expires(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(tmp_path, keys=True) as served:
        _, secret = await served.hub.store.keys.create("ada")
        bearer = {"authorization": f"Bearer {secret}"}
        link = read(await served.http.post(LINKS, headers=bearer), operation("post", LINKS))
        page_url, _, token = link["url"].partition("#link=")
        assert page_url == f"{served.url}/console/"
        answer, page, _ = await sign_in(served, link=token)
        assert answer["owner"] == "ada"
        assert (await served.http.get("/api/sessions", headers=page)).status_code == 200
        again = await served.http.post(SESSION, json={"link": token})
        assert (again.status_code, "used before" in again.text) == (401, True)

        monkeypatch.setattr(stored_sessions, "LINK_SECONDS", 0.0)
        old = (await served.http.post(LINKS, headers=bearer)).json()["url"].partition("#link=")[2]
        assert (await served.http.post(SESSION, json={"link": old})).status_code == 401
        cookie_of_link = {"cookie": page["cookie"].partition("=")[0] + "=" + old}
        assert (await served.http.get("/api/sessions", headers=cookie_of_link)).status_code == 401
        monkeypatch.setattr(stored_sessions, "SESSION_SECONDS", -1.0)
        assert (await served.http.post(SESSION, json={"key": secret})).status_code == 401
        wrong: list[Any] = [{}, {"key": secret, "link": token}, {"password": "x"}, []]
        for body in wrong:
            assert (await served.http.post(SESSION, json=body)).status_code == 400
        assert (await served.http.post(SESSION, json={"key": "dgm_wrong"})).status_code == 401


async def test_a_key_has_a_limited_number_of_sign_ins(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as served:
        _, secret = await served.hub.store.keys.create("ada")
        pages = [(await sign_in(served, key=secret))[1] for _ in range(stored_sessions.MAX_ROWS + 1)]
        statuses = [(await served.http.get("/api/sessions", headers=page)).status_code for page in pages]
        assert statuses == [401, *[200] * stored_sessions.MAX_ROWS]


async def test_a_hub_without_keys_has_everybody_signed_in(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        answer = (await served.http.get(SESSION)).json()
        validator(
            operation("get", SESSION)["responses"]["200"]["content"]["application/json"]["schema"]
        ).validate(answer)
        assert (answer["signedIn"], answer["keysRequired"], answer["owner"]) == (True, False, "local")
        assert "admin" in answer["scopes"]
        assert (await served.http.post(LINKS)).json()["url"] == f"{served.url}/console/"
        assert (await served.http.get(SESSION, headers={"origin": "http://evil.example"})).status_code == 403


async def open_page(served: Served, path: str) -> tuple[set[str], str, httpx2.Response]:
    """Where a page looks for its assets, the name of its script, and the page."""
    page = await served.http.get(f"/console/{path}", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert page.headers["content-security-policy"] == SECURITY_POLICY
    assert page.headers["cache-control"] == "no-cache"
    assets = re.findall(r'(?:src|href)="([^"]+/)assets/([^"]+)"', page.text)
    return {prefix for prefix, _ in assets}, next(name for _, name in assets if name.endswith(".js")), page


async def test_every_address_below_the_console_is_its_page_and_assets_are_for_ever(tmp_path: Path) -> None:
    async with serving(tmp_path, keys=True) as served:
        moved = await served.http.get("/console")
        assert (moved.status_code, moved.headers["location"]) == (308, "console/")
        for path, up in (
            ("", "."),
            ("chat", "."),
            ("runs/run_1", "../."),
            ("teams/a/b", "../../."),
            ("chat/a%2Fb", "../."),
        ):
            prefixes, script, page = await open_page(served, path)
            assert prefixes == {f"{up}/"}, path
            unchanged = {"if-none-match": page.headers["etag"]}
            assert (await served.http.get(f"/console/{path}", headers=unchanged)).status_code == 304
        _, script, _ = await open_page(served, "")
        sizes = {}
        for encoding in ("br", "gzip", "identity"):
            answer = await served.http.get(f"/console/assets/{script}", headers={"accept-encoding": encoding})
            assert answer.headers.get("content-encoding", "identity") == encoding
            assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
            assert answer.headers["content-type"].startswith("text/javascript")
            sizes[encoding] = int(answer.headers["content-length"])
        assert sizes["br"] < sizes["gzip"] < sizes["identity"]
        for name in ("index-none.js", "..%2findex.html", "%2e%2e", script + ".map"):
            assert (await served.http.get(f"/console/assets/{name}")).status_code == 404


async def test_a_page_finds_its_scripts_after_the_package_was_replaced_under_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "static"
    script = folder / "assets" / "keys-0.js"
    script.parent.mkdir(parents=True)
    script.write_text("export default 1;", encoding="utf-8")
    async with serving(tmp_path / "a") as served:
        monkeypatch.setattr(served.hub.endpoints.console_pages, "_folder", folder)
        assert "not part of this installation" in (await served.http.get("/console/keys")).text
        (folder / "index.html").write_text("<!doctype html>", encoding="utf-8")
        assert (await served.http.get("/console/keys")).text == "<!doctype html>"
        script.unlink()
        answer = await served.http.get("/console/assets/keys-0.js")
        assert (answer.status_code, answer.text) == (200, "export default 1;")
        assert (await served.http.get("/console/assets/index.html")).status_code == 404


async def test_a_hub_that_was_built_without_npm_says_how_to_get_the_console(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "a") as served:
        pages: ConsolePages = served.hub.endpoints.console_pages
        monkeypatch.setattr(pages, "_folder", tmp_path)
        page = await served.http.get("/console/runs/x")
        assert (page.status_code, "pip install ." in page.text) == (200, True)
        assert '"../../docs"' in page.text
        assert page.headers["content-security-policy"] == SECURITY_POLICY


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("", set()),
        ("gzip, br", {"gzip", "br"}),
        ("br;q=1.0, gzip;q=0, deflate; q=0.0", {"br"}),
        ("GZIP;q=0.5", {"gzip"}),
    ],
)
def test_encodings_of_quality_zero_are_not_accepted(header: str, accepted: set[str]) -> None:
    assert accepted_encodings(header) == accepted

"""The documentation's site under a hub whose package is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.server.reference import documentation_site
from tests.serving import Served, serving

PAGE = "<!doctype html><p>first</p>"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The site of hubs that start: one page with a picture, without hashes of scripts yet."""
    monkeypatch.setattr(documentation_site, "files", lambda _: tmp_path)
    site = tmp_path / "site"
    (site / "images").mkdir(parents=True)
    (site / "index.html").write_text(PAGE, encoding="utf-8")
    (site / "images" / "dot.png").write_bytes(b"\x89PNG")
    return site


async def read(served: Served, name: str, encoding: str = "gzip") -> tuple[int, str, str | None]:
    """The status, the text and the content coding of a file."""
    answer = await served.http.get(f"/docs/{name}", headers={"accept-encoding": encoding})
    return answer.status_code, answer.text, answer.headers.get("content-encoding")


async def test_pages_are_of_one_version_after_the_package_was_replaced_under_the_hub(
    tmp_path: Path, site: Path
) -> None:
    async with serving(tmp_path / "hub") as served:
        status, text, _ = await read(served, "")
        assert (status, "is being replaced" in text, "load the page again" in text) == (503, True, True)
        (site / "csp.json").write_text('["half', encoding="utf-8")
        assert (await read(served, ""))[0] == 503
        (site / "csp.json").write_text("[\"'sha256-x'\"]", encoding="utf-8")
        assert await read(served, "") == (200, PAGE, "gzip")
        (site / "index.html").write_text("<!doctype html><p>second</p>", encoding="utf-8")
        (site / "images" / "dot.png").unlink()
        assert await read(served, "index.html", "identity") == (200, PAGE, None)
        assert await read(served, "images/dot.png") == (200, "\ufffdPNG", None)
        page = await served.http.get("/docs/")
        assert "script-src 'self' 'sha256-x';" in page.headers["content-security-policy"]
        assert "accept-encoding" in page.headers["vary"]


async def test_a_build_without_the_site_leads_to_the_api_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documentation_site, "files", lambda _: tmp_path)
    async with serving(tmp_path / "hub") as served:
        answer = await served.http.get("/docs/operations.html")
        assert (answer.status_code, answer.headers["location"]) == (307, "api")

"""The documentation as a hub serves it: in a real browser under its CSP, and to programs."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import httpx2
import pytest

from tests.clients.driver import HERE, require
from tests.clients.hub import Hub

DOCS = Path(__file__).parents[2] / "docs"
MAX_WHEEL = 8_000_000
LINK = re.compile(r'href="([^"#?]+\.html)(?:#[^"]*)?"')


@pytest.mark.promise("docs-site")
def test_the_site_is_searched_and_read_in_a_browser_without_a_violation_of_its_policy(
    hub: Hub, tmp_path: Path
) -> None:
    done = subprocess.run(
        ["node", HERE / "docs.mjs", require("chromium"), hub.url, tmp_path],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["tabs"] == ["Home", "Tutorial", "Guides", "Reference", "Why"]
    assert any("reverse-proxies.html" in hit for hit in seen["hits"])
    assert (seen["light"], "reference" in seen["reference"]) == ("default", True)
    assert (seen["complaints"], seen["foreign"]) == ([], [])


def test_every_page_is_there_links_lead_somewhere_and_programs_read_them_as_markdown(hub: Hub) -> None:
    with httpx2.Client(base_url=hub.url, trust_env=False, timeout=60) as http:
        index = http.get("/docs/llms.txt")
        assert (index.status_code, index.headers["content-type"]) == (200, "text/plain; charset=utf-8")
        for page in sorted(DOCS.glob("*.md")):
            assert f"]({page.name})" in index.text, page.name
            assert http.get(f"/docs/{page.name}").text == page.read_text(encoding="utf-8"), page.name
            html = http.get(f"/docs/{page.stem}.html")
            assert html.status_code == 200, page.name
            assert "unsafe-eval" not in html.headers["content-security-policy"]
            assert "script-src 'self' 'sha256-" in html.headers["content-security-policy"]
        front = http.get("/docs/index.html").text
        for target in set(LINK.findall(front)):
            assert http.get(f"/docs/{target}").status_code == 200, target
        assert http.get("/docs").headers["location"] == "docs/"
        for name in ("no-such.html", "..%2Fopenapi.yaml", "../handlers.py", "csp", "assets/", "%00"):
            assert http.get(f"/docs/{name}").status_code in (404, 308), name


def test_the_wheel_is_small_and_has_the_site() -> None:
    [wheel] = (DOCS.parent / "dist").glob("*.whl")
    assert wheel.stat().st_size <= MAX_WHEEL
    site = files("dragoman.server.reference") / "site"
    assert (site / "index.html").is_file()

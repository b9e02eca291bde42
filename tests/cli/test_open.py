"""`dragoman open`: the console's link, for a browser or printed."""

from __future__ import annotations

from pathlib import Path

import httpx2

from tests.cli.conftest import Run
from tests.cli.program import LIMIT, Hub, run, scripted, serving


def sign_in(url: str, link: str) -> int:
    headers = {"origin": url, "sec-fetch-site": "same-origin"}
    with httpx2.Client(timeout=LIMIT, trust_env=False) as http:
        return http.post(f"{url}/api/console/session", json={"link": link}, headers=headers).status_code


def test_the_link_signs_in_once_and_is_printed_where_there_is_no_browser(tmp_path: Path) -> None:
    config = {"providers": {"play": scripted(tmp_path, "play", [{"text": "Hi."}])}, "model": "play/x"}
    with serving(tmp_path, config) as hub:
        key = hub.key("me")
        printed = run(
            "open", "--hub", hub.url, "--key", key, env={"DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""}
        )
        assert printed.code == 0, printed.err
        address, _, link = printed.out.strip().partition("#link=")
        assert (address, key in printed.out + printed.err) == (f"{hub.url}/console/", False)
        assert [sign_in(hub.url, link), sign_in(hub.url, link)] == [201, 401]
        browser = tmp_path / "browser"
        browser.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/opened\n')
        browser.chmod(0o755)
        opened = run("open", "--hub", hub.url, "--key", key, env={"BROWSER": f"{browser} %s"})
        assert (opened.code, opened.out) == (0, "")
        assert "#link=" not in opened.err
        assert (tmp_path / "opened").read_text().startswith(f"{hub.url}/console/#link=")
        refused = run("open", "--hub", hub.url, "--key", "dgm_wrong", "--print")
        assert (refused.code, refused.out) == (1, "")


def test_a_hub_without_keys_is_opened_without_a_link(hub: Hub, run: Run) -> None:
    result = run("open", "--hub", hub.url, "--print")
    assert (result.code, result.out.strip()) == (0, f"{hub.url}/console/")

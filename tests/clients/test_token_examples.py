"""The examples of session tokens: a server of FastAPI, and one of Next.js with the transport of its page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.clients.hub import StartHub
from tests.serving import ask, frames_in, text_of

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "tokens"
LISTENS = re.compile(r"running on (http://127\.0\.0\.1:\d+)")
ORIGIN = "http://127.0.0.1:3000"


@pytest.mark.promise("session-tokens")
def test_the_next_example_gives_its_user_a_token_and_its_transport_chats_with_it(
    start_hub: StartHub, tmp_path: Path
) -> None:
    hub = start_hub(cors={"origins": [ORIGIN]})
    done = subprocess.run(
        ["node", HERE / "tokens.mjs", tmp_path],
        env={**os.environ, "HUB": hub.url, "HUB_KEY": hub.key},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["mine"]
    assert "there is nothing here for this session token" in found["others"]
    assert (found["stranger"], found["tokens"], found["knowsKey"]) == (401, 1, False)


def test_the_fastapi_example_gives_its_user_a_token_that_chats_with_the_hub(start_hub: StartHub) -> None:
    hub = start_hub(cors={"origins": [ORIGIN]})
    app = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "fastapi_app:app", "--port", "0"],
        cwd=EXAMPLES,
        env={**os.environ, "HUB": hub.url, "HUB_KEY": hub.key, "PYTHONDONTWRITEBYTECODE": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert app.stderr is not None
        url = next(found[1] for line in app.stderr if (found := LISTENS.search(line)))
        with httpx2.Client(trust_env=False, timeout=60) as http:
            assert http.post(f"{url}/api/token").status_code == 401
            assert "/api/token" in http.get(url).text
            access = http.post(f"{url}/api/token", headers={"cookie": "user=ada"}).json()
            assert hub.key not in json.dumps(access)
            headers = {"authorization": f"Bearer {access['token']}", "origin": ORIGIN}
            body = ask("hello", session=f"{access['prefix']}chat")
            answer = http.post(f"{access['hub']}/api/chat", json=body, headers=headers)
            assert answer.headers["access-control-allow-origin"] == ORIGIN
            assert text_of(frames_in(answer.text))
            beyond = http.post(
                f"{access['hub']}/api/chat", json=ask("x", session="bob/chat"), headers=headers
            )
            assert beyond.status_code == 404
    finally:
        app.terminate()
        app.wait(120)
        if app.stderr is not None:
            app.stderr.close()

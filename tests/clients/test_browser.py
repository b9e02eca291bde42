"""A React page with `useChat` in a real browser."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.behaviours import calculate
from tests.clients.driver import HERE, LIMIT, player, require
from tests.clients.hub import Hub
from tests.clients.pages import Pages
from tests.clients.upstream import Upstream
from tests.effort import rows

HALF = "one two three"
WHOLE = "one two three four five"


@dataclass(frozen=True)
class Visit:
    """A person with a browser on the chat page, with a session of their own."""

    pages: Pages
    hub: Hub
    folder: Path
    session: str

    def __call__(self, *actions: dict[str, Any]) -> dict[str, Any]:
        """Use the page; what the person sees at the end, and a screenshot of it in `folder`."""
        address = urllib.parse.urlencode({"id": self.session, "key": self.hub.key})
        picture = {"do": "shoot", "path": str(self.folder / "end.png")}
        script = {
            "url": f"{self.pages.url}/?{address}",
            "actions": [*actions, picture],
        }
        seen: dict[str, Any] = player("browse.mjs", require("chromium")).play(script)
        print(json.dumps(seen, indent=1))  # pytest shows it when the test fails
        assert not seen.get("failure")
        return seen

    def stored(self) -> list[dict[str, Any]]:
        """What the hub keeps of it."""
        status, body = self.hub.request("GET", f"/api/sessions/{self.session}/messages")
        assert status == 200, body
        messages: list[dict[str, Any]] = body["messages"]
        return messages


@pytest.fixture(params=rows(["7", "6"], quick=2), ids="sdk{}".format)
def sdk(request: pytest.FixtureRequest) -> str:
    """The version of the AI SDK; in `make test`, the other one is met by the tests without a browser."""
    version: str = request.param
    return version


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Bundles the page for an SDK version, once."""
    made: dict[str, Path] = {}

    def build(sdk: str) -> Path:
        if sdk not in made:
            made[sdk] = tmp_path_factory.mktemp(f"page{sdk}")
            subprocess.run(
                [require("node"), "page/build.mjs", sdk, made[sdk]], cwd=HERE, check=True, timeout=LIMIT
            )
        return made[sdk]

    return build


@pytest.fixture
def visit(hub: Hub, sdk: str, bundle: Callable[[str], Path], tmp_path: Path) -> Iterator[Visit]:
    pages = Pages(bundle(sdk), hub.url)
    yield Visit(pages, hub, tmp_path, uuid.uuid4().hex)
    pages.close()


@pytest.fixture
def gate(upstream: Upstream) -> Iterator[str]:
    """A gate that the model waits at, opened at last."""
    name = uuid.uuid4().hex
    yield name
    upstream.open(name)


def blocked(gate: str) -> list[dict[str, Any]]:
    return [{"text": ["one ", "two ", "three "]}, {"gate": gate}, {"text": ["four ", "five"]}]


def see(text: str) -> dict[str, Any]:
    return {"do": "see", "text": text}


def assert_shown_whole(seen: dict[str, Any]) -> None:
    """Question and answer, the answer's text complete and there once, and nothing to complain about."""
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant"]
    texts = [part["text"] for part in seen["messages"][-1]["parts"] if part["kind"] == "text"]
    assert texts == [WHOLE]
    assert seen["status"] == "ready"
    assert seen.get("error") is None


READY = {"do": "status", "is": "ready"}


def test_a_person_sees_the_tool_call_and_the_answer(visit: Visit, upstream: Upstream) -> None:
    mark = upstream.teach([{"calls": [calculate("6*7")]}], [{"text": "It is 42."}])
    seen = visit({"do": "say", "text": f"{mark} 6*7?"}, see("It is 42."), READY)
    _, answer = seen["messages"]
    assert [(part["kind"], part.get("state")) for part in answer["parts"]] == [
        ("step-start", None),
        ("tool-hub_call", "output-available"),
        ("step-start", None),
        ("text", "done"),
    ]
    assert "42" in answer["parts"][1]["text"]
    assert seen["complaints"] == []
    assert [request for request in seen["requests"] if request["method"] == "POST"] == [
        {"method": "POST", "path": "/api/chat", "status": 200}
    ]
    assert (visit.folder / "end.png").stat().st_size > 0


def test_a_page_reloaded_in_midstream_ends_with_the_whole_answer_once(
    visit: Visit, upstream: Upstream, gate: str
) -> None:
    mark = upstream.teach([{"calls": [calculate("6*7")]}], blocked(gate))
    seen = visit(
        {"do": "say", "text": mark},
        see(HALF),
        {"do": "reload"},
        {"do": "status", "is": "streaming"},
        see(HALF),
        {"do": "request", "method": "POST", "url": upstream.gate(gate)},
        see(WHOLE),
        READY,
    )
    assert_shown_whole(seen)
    assert len(upstream.requests(mark)) == 2
    assert seen["complaints"] == []


def test_a_page_that_lost_its_connection_resumes_and_shows_the_answer_once(
    visit: Visit, upstream: Upstream, gate: str
) -> None:
    mark = upstream.teach(blocked(gate))
    visit.pages.lose_after(frames=4)
    seen = visit(
        {"do": "say", "text": mark},
        {"do": "lost", "is": 1},
        {"do": "status", "is": "streaming"},
        see(HALF),
        {"do": "request", "method": "POST", "url": upstream.gate(gate)},
        see(WHOLE),
        READY,
    )
    assert_shown_whole(seen)
    assert len(upstream.requests(mark)) == 1


def test_a_person_who_stops_keeps_what_was_said_and_can_go_on(
    visit: Visit, upstream: Upstream, gate: str
) -> None:
    mark = upstream.teach(blocked(gate))
    seen = visit(
        {"do": "say", "text": mark},
        see(HALF),
        {"do": "press", "button": "Stop"},
        READY,
        {"do": "say", "text": "#plain And now?"},
        see("Hello from the model."),
        READY,
    )
    roles = [message["role"] for message in seen["messages"]]
    assert roles == ["user", "assistant", "user", "assistant"]
    [request] = upstream.requests(mark)
    upstream.wait(lambda: request.ended)
    assert request.left is not None
    stopped = visit.stored()[1]
    assert [(part.get("text"), part.get("state")) for part in stopped["parts"]][-1] == (
        "one two three ",
        "done",
    )
    assert seen.get("error") is None

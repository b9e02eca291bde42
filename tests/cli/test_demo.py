"""`dragoman demo` and `dragoman local`."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx2
import msgspec

from dragoman.cli.local import is_installed
from tests.cli.conftest import Run
from tests.cli.program import LIMIT, finish, read_until, run, start

ROOT = Path(__file__).parents[2]


def test_the_scripted_demo_shows_a_turn_with_tools_and_what_was_kept() -> None:
    reply = run("demo", "--scripted")
    assert (reply.code, reply.err) == (0, "")
    assert "SIMULATOR" in reply.out
    assert re.search(r"→ hub_search .*\n  ✓ .*time\.now", reply.out)
    assert re.search(r"→ .*math\.calculate.*\n  ✓ .*\"result\":1517", reply.out)
    assert "session    demo-1\n  user       text\n  assistant  step-start, reasoning, hub_search" in reply.out
    assert re.search(r"call +math\.calculate: done", reply.out)
    assert len(re.findall(r"run +finished\n", reply.out)) == 1  # the example waited for an approval
    assert len(re.findall(r"run +finished, example-guide/script · 3 steps", reply.out)) == 1
    assert "usage      8 model calls" in reply.out  # 3, and 5 of the example
    for line in (r"math\.calculate: failed", r"agents\.clerk: done"):
        assert re.search(rf"call +{line}", reply.out)
    assert "dragoman serve" in reply.out
    assert "useChat" in reply.out


def test_the_demo_shows_a_real_model_that_calls_tools() -> None:
    """The model is small: one of its two calls must have run."""
    assert is_installed(), "the local model is not installed: make setup"
    reply = run("demo")
    assert (reply.code, reply.err) == (0, "")
    assert "SIMULATOR" not in reply.out
    assert re.search(r"→ (math\.calculate|time\.now) \{", reply.out)
    assert re.search(r"call +(math\.calculate|time\.now): done", reply.out)


def test_a_demo_that_is_kept_leaves_a_hub_to_try(tmp_path: Path) -> None:
    demo = start("demo", "--scripted", "--keep", env={"TMPDIR": str(tmp_path)})
    text = read_until(demo, "stays up at ") + read_until(demo, "\n")
    url, key = re.findall(r"stays up at (\S+) until Ctrl-C\. Its key: (\S+)", text)[0]
    answer = run("chat", "again", "--hub", url, "--key", key)
    assert (answer.code, "1517" in answer.out) == (0, True)
    link = re.search(r"an approval and a sub-agent:\n  (http\S+)#link=\S+", text)
    assert link is not None
    assert link[1] == f"{url}/console/chat/example"
    headers = {"authorization": f"Bearer {key}"}
    with httpx2.stream(
        "GET", f"{url}/api/events", headers=headers, timeout=LIMIT, trust_env=False
    ):  # as an open console does
        ended = finish(demo, signal.SIGINT)
    assert (ended.code, ended.err) == (0, "")
    assert list(tmp_path.glob("dragoman-demo-*/data/hub.db"))


def test_the_wheels_of_the_local_model_are_pinned_as_in_the_repository() -> None:
    pinned = (ROOT / "requirements/local.txt").read_text()
    packaged = (ROOT / "src/dragoman/cli/local.txt").read_text()
    assert packaged == pinned
    assert "--hash=sha256:" in packaged


def test_the_local_model_is_said_to_be_here_or_not(run: Run) -> None:
    reply = run("local", "status")
    assert reply.code == (0 if is_installed() else 1)
    assert msgspec.json.encode(reply.out.split()[0]) in (b'"installed"', b'"not"')

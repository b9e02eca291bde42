"""`dragoman chat` at a terminal."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.cli.program import Hub, Terminal, finish, read_until, run, scripted, serving, start

DANGER = Path(__file__).parent.parent / "flows" / "approval_operation.py"


def open_chat(hub: Hub, *arguments: str) -> Terminal:
    return Terminal("chat", *arguments, env={"DRAGOMAN_HUB": hub.url})


def test_ctrl_c_stops_the_answer_and_not_the_program(hub: Hub) -> None:
    chat = open_chat(hub, "--session", "talk")
    chat.see("you> ")
    chat.type("/model slow/x")
    assert "model: slow/x" in chat.see("you> ")
    chat.type("go on")
    chat.see("first")
    chat.press(signal.SIGINT)
    assert "stopped by the user" in chat.see("you> ")
    chat.type("/model")
    assert "as the hub is configured" in chat.see("you> ")
    chat.type("and now?")
    assert "Good day." in chat.see("you> ")
    chat.type("/quit")
    assert "`dragoman chat --session talk` continues it" in chat.see_rest()
    assert chat.wait() == 0
    shown = run("sessions", "show", "talk", "--hub", hub.url, "--json").json
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"] * 2
    assert shown["messages"][1]["metadata"]["finishReason"] == "aborted"


def test_a_second_ctrl_c_at_the_prompt_leaves(hub: Hub) -> None:
    chat = open_chat(hub)
    chat.see("you> ")
    chat.press(signal.SIGINT)
    chat.see("Ctrl-C again")
    chat.see("you> ")
    chat.press(signal.SIGINT)
    assert "continues it" not in chat.see_rest()  # nothing was sent, so there is no session
    assert chat.wait() == 0


def test_a_session_that_is_being_answered_is_followed_from_the_start(hub: Hub) -> None:
    other = start("chat", "go", "--model", "slow/x", "--hub", hub.url, "--session", "followed")
    read_until(other, "word20 ")
    chat = open_chat(hub, "--session", "followed")
    assert "an answer is active" in chat.see("first word0 word1 ")
    chat.press(signal.SIGINT)
    assert "stopped by the user" in chat.see("you> ")
    assert chat.leave() == 0
    assert finish(other).code == 130


def test_commands_begin_with_a_slash(hub: Hub) -> None:
    chat = open_chat(hub)
    chat.see("you> ")
    chat.type("hello")
    chat.see("Good day.")
    chat.see("you> ")
    chat.type("/sessions")
    listed = chat.see("you> ")
    session = next(word for word in listed.split() if word.startswith("cli-"))
    chat.type("/new")
    assert session not in chat.see("you> ")
    chat.type(f"/open {session}")
    assert "2 messages" in chat.see("you> ")
    chat.type("/open nowhere")
    assert "is new" in chat.see("you> ")
    chat.type("/help")
    assert "/quit" in chat.see("you> ")
    chat.type("/quit")
    assert "continues it" not in chat.see_rest()  # there is no session nowhere
    assert chat.wait() == 0


def test_an_error_is_shown_and_the_chat_goes_on(hub: Hub) -> None:
    chat = open_chat(hub, "--model", "none/x")
    chat.see("you> ")
    chat.type("hello")
    assert "none/x" in chat.see("you> ")
    chat.type("/model bad/x")
    chat.see("you> ")
    chat.type("hello")
    assert "the model fell over" in chat.see("you> ")
    assert chat.leave() == 0


def test_a_talk_without_a_hub_does_not_begin() -> None:
    chat = Terminal("chat", "--hub", "http://127.0.0.1:9", env={})
    chat.see("dragoman serve")
    assert chat.wait() == 1


def test_a_call_that_wants_approval_is_asked_about_and_the_talk_goes_on(tmp_path: Path) -> None:
    calls = [{"tool": "time.now", "input": {}}, {"tool": "danger.wipe", "input": {"disk": "a"}}]
    wipe = {"tools": [{"name": "hub_call", "input": {"calls": calls}, "id": "c1"}]}
    config = {
        "providers": {"sim": scripted(tmp_path, "sim", [wipe, {"text": "Gone now."}])},
        "model": "sim/x",
        "operations": [str(DANGER)],
        "pinned": ["danger.wipe"],
    }
    with serving(tmp_path, config, "--no-auth") as hub:
        chat = open_chat(hub)
        chat.see("you> ")
        chat.type("wipe it")
        prompt = chat.see("approve? ")
        assert "time.now, danger.wipe waits for somebody's approval" in prompt
        assert '  danger.wipe {"disk":"a"}' in prompt.splitlines()[-2]
        assert "hub_call" not in prompt
        listed = run("approvals", "list", "--hub", hub.url).out
        assert re.search(r"danger\.wipe +\{\"disk\":\"a\"\}", listed)
        assert "hub" not in listed
        chat.type("y")
        shown = chat.see("you> ")
        assert "wiped a" in shown
        assert "Gone now." in shown
        assert chat.leave() == 0


def test_commands_choose_fork_attach_count_and_are_remembered(hub: Hub, tmp_path: Path) -> None:
    env = {"DRAGOMAN_HUB": hub.url, "XDG_STATE_HOME": str(tmp_path / "state")}
    (tmp_path / "notes.txt").write_text("seven")
    chat = Terminal("chat", "--session", "forked", env=env)
    chat.see("you> ")
    chat.type("/fork")
    assert "nothing to fork yet" in chat.see("you> ")
    chat.type(f"/attach {tmp_path / 'nothing'}")
    assert "there is no file" in chat.see("you> ")
    chat.type(f"/attach {tmp_path / 'notes.txt'}")
    assert "notes.txt (text/plain) goes with the next message" in chat.see("you> ")
    chat.type("read it")
    assert "Good day." in chat.see("you> ")
    chat.type("/cost")
    cost = chat.see("you> ")
    assert re.search(r"MODEL +REQUESTS +TOKENS IN", cost), cost
    assert re.search(r" 1 +5 +3 ", cost), cost
    chat.type("/agent")
    assert re.search(r"default +plain/x", chat.see("you> "))
    chat.type("/agent nobody")
    chat.see("agent: nobody")
    chat.see("you> ")
    chat.type("hello")
    assert "nobody" in chat.see("you> ")
    chat.type("/agent")
    chat.see("as the session has it")
    chat.type("/fork")
    forked = re.search(r"session (\S+) continues from here", chat.see("stays as it is"))
    chat.type("and now?")
    chat.see("Good day.")
    chat.see("you> ")
    chat.type("/stop")
    chat.see("nothing is being answered")
    chat.type("/hepl")
    chat.see("there is no command /hepl; did you mean '/help'?")
    chat.see("you> ")
    chat.type("/model")
    chat.see("plain/x")
    chat.see("as the hub is configured")
    chat.type("/help")
    assert "/fork" in chat.see("Ctrl-C while")
    chat.see("you> ")
    assert chat.leave() == 0
    assert forked is not None
    messages = run("sessions", "show", "forked", "--hub", hub.url, "--json").json["messages"]
    assert [part["type"] for part in messages[0]["parts"]] == ["text", "file"]
    assert (
        len(run("sessions", "show", forked[1], "--hub", hub.url, "--json").json["messages"])
        == len(messages) + 2
    )
    history = tmp_path / "state" / "dragoman" / "chat_history"
    assert ("read it" in history.read_text(), history.stat().st_mode & 0o077) == (True, 0)


@pytest.mark.promise("terminal-chat")
def test_a_terminal_shows_markdown_completes_commands_and_stops_at_ctrl_c(hub: Hub, tmp_path: Path) -> None:
    env = {"DRAGOMAN_HUB": hub.url, "XDG_STATE_HOME": str(tmp_path)}
    chat = Terminal("chat", "--session", "drawn", env=env, terminal="xterm-256color")
    chat.watch("you>")
    chat.press_key(b"/mod\t")
    chat.watch("you> /model")
    chat.press_key(b"pl\t")
    chat.watch("you> /model plain/x")
    chat.press_key(b"\x15/model marked/x\r")
    chat.watch("model: marked/x")
    chat.press_key(b"draw a table\r")
    shown = chat.watch("tokens out")
    assert "\n Mon  tea\n" in shown
    assert "|" not in shown
    assert "**" not in shown
    chat.press_key(b"/model slow/x\r")
    chat.watch("model: slow/x")
    chat.press_key(b"go on\r")
    chat.watch("word9 ")
    chat.press(signal.SIGINT)
    shown = chat.watch("stopped by the user")
    assert shown.count("first word0") == 1
    chat.watch("\nyou>\n")
    chat.press_key(b"\x1b[A")
    chat.watch("you> go on")
    chat.press_key(b"\x15")
    chat.press_key(b"/quit\r")
    assert chat.wait() == 0

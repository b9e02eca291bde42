"""Plays scenarios on the AI SDK's `Chat` class (drive.mjs) and parses its report."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.clients.hub import Hub

HERE = Path(__file__).parent
LIMIT = 120.0
Action = dict[str, Any]


class Missing(Exception):
    """A program or package that these tests need is not installed."""


class Rejected(AssertionError):
    """The real client, its schemas or the grammar of the stream did not accept what the hub sent."""


@dataclass(frozen=True)
class Report:
    """What happened in a scenario. `chat` is the first tab."""

    session: str
    raw: dict[str, Any]

    @property
    def chat(self) -> dict[str, Any]:
        return self.tab("main")

    def tab(self, name: str) -> dict[str, Any]:
        tab: dict[str, Any] = self.raw["chats"][name]
        return tab

    @property
    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.chat["messages"]
        return messages

    @property
    def answer(self) -> dict[str, Any]:
        """The last message, which has to be the assistant's."""
        last = self.messages[-1]
        assert last["role"] == "assistant", self.messages
        return last

    @property
    def stored(self) -> list[dict[str, Any]]:
        """The messages that the hub keeps."""
        stored: list[dict[str, Any]] = self.raw.get("stored", [])
        return stored

    @property
    def posts(self) -> list[dict[str, Any]]:
        """The turns that the clients asked for."""
        return [request for request in self.raw["requests"] if request["method"] == "POST"]

    def result(self, name: str) -> dict[str, Any]:
        """The answer to a request that the scenario made beside the chat."""
        [result] = [result for result in self.raw["results"] if result.get("name") == name]
        found: dict[str, Any] = result
        return found

    def frames(self, number: int) -> list[dict[str, Any]]:
        """The frames of the response to the nth request, counted from 1."""
        [response] = [one for one in self.raw["responses"] if one["n"] == number]
        frames: list[dict[str, Any]] = response["frames"]
        return frames


@dataclass(frozen=True)
class Driver:
    """A browser's half of the conversation, of one SDK version."""

    sdk: str
    hub: Hub

    def __call__(self, *actions: Action, **scenario: Any) -> Report:
        """Play the actions on a new session; whatever the SDK or the grammar rejects fails the test."""
        report = self.play(*actions, **scenario)
        if report.raw.get("failure") or report.raw["violations"]:
            found = [report.raw.get("failure") or "", *report.raw["violations"]]
            raise Rejected("\n".join(found) + "\n\n" + json.dumps(report.raw)[:8000])
        return report

    def play(self, *actions: Action, **scenario: Any) -> Report:
        """Play the actions and return the report, whatever it says."""
        session = scenario.pop("id", f"chat {uuid.uuid4()}")
        whole = {
            "api": self.hub.api,
            "id": session,
            "headers": self.hub.headers,
            "actions": actions,
            **scenario,
        }
        return Report(session, player("drive.mjs", "--sdk", self.sdk, "--serve").play(whole))


class Player:
    """A node process that has loaded an SDK or started a browser, and plays one scenario after the other."""

    def __init__(self, script: str, *arguments: str, folder: Path) -> None:
        self._script = script
        command = [require("node"), script, *arguments]
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def play(self, scenario: Any) -> Any:
        """The report of a scenario; once one was given up, the process is not used again."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(scenario) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
            if not line:
                raise Missing(f"{self._script} printed nothing; are its packages installed (npm ci)?")
        except BaseException:
            player.cache_clear()
            self.close()
            raise
        return json.loads(line)

    def close(self) -> None:
        """End the process; a browser is given the time to end."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@cache
def player(script: str, *arguments: str, folder: Path = HERE) -> Player:
    """The process of a script of this folder with these arguments, which lives as long as the tests."""
    made = Player(script, *arguments, folder=folder)
    _players.append(made)
    return made


def violations_in(bodies: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What the AI SDK's schemas and the grammar of streams do not accept, for each body of a response."""
    verdicts: list[list[str]] = player("check.mjs").play(bodies)
    return verdicts


_players: list[Player] = []


def close_players() -> None:
    """End all processes."""
    while _players:
        _players.pop().close()


def run_node(script: str, *arguments: str, value: Any) -> Any:
    """The JSON that a script of this folder prints."""
    node = require("node")
    done = subprocess.run(
        [node, script, *arguments],
        cwd=HERE,
        input=json.dumps(value),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    if not done.stdout:
        raise Missing(f"{script} printed nothing; are its packages installed (npm ci)?\n{done.stderr}")
    return json.loads(done.stdout)


def require(program: str) -> str:
    """Where a program is."""
    path = shutil.which(program)
    if path is None:
        raise Missing(f"these tests need {program!r}")
    return path


def text_of(message: dict[str, Any]) -> str:
    """All text of a message."""
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


def shape_of(message: dict[str, Any]) -> list[str]:
    """The types of a message's parts, in order."""
    return [part["type"] for part in message["parts"]]


def story_of(messages: list[dict[str, Any]]) -> list[Any]:
    """What was said and done, without what one SDK version adds for itself."""
    return [
        (message["id"], message["role"], [bare(part) for part in message["parts"]]) for message in messages
    ]


def bare(part: dict[str, Any]) -> dict[str, Any]:
    """A part's own content; version 6 calls the input of an invalid call `rawInput`."""
    if "rawInput" in part:
        part = {"input": part["rawInput"], **part}
    stored = ("type", "text", "state", "toolCallId", "toolName", "input", "output", "errorText", "url")
    return {name: part[name] for name in stored if name in part}

"""The real Codex CLI: run it once, and what it said."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

PACKAGE = Path(__file__).parent / "codex" / "node_modules" / "@openai"
LIMIT = 120  # seconds; a run takes one
CONFIG = """
model = "{model}"
model_provider = "hub"
{top}
[model_providers.hub]
name = "{name}"
base_url = "{url}/v1"
env_key = "HUB_KEY"
wire_api = "responses"
request_max_retries = 2
stream_max_retries = 2
{provider}
{sections}
"""


class CodexRun(msgspec.Struct, frozen=True):
    """One run: its events, its exit code, and what it wrote to stderr."""

    events: list[dict[str, Any]]
    code: int
    errors: str

    @property
    def thread_id(self) -> str:
        """The thread, which can be resumed."""
        return str(next(event["thread_id"] for event in self.events if event["type"] == "thread.started"))

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The completed items of a kind, such as `agent_message`."""
        done = [event["item"] for event in self.events if event["type"] == "item.completed"]
        return [item for item in done if item["type"] == kind]

    @property
    def text(self) -> str:
        """The last message."""
        return str(self.items("agent_message")[-1]["text"])

    @property
    def usage(self) -> dict[str, int]:
        """The tokens that the last turn counted."""
        turns = [event["usage"] for event in self.events if event["type"] == "turn.completed"]
        return dict(turns[-1])


class Codex:
    """Codex with a home folder of its own, set up for a hub."""

    def __init__(
        self, home: Path, *, url: str, key: str, model: str, settings: Mapping[str, str] | None = None
    ) -> None:
        self._home = home
        self._key = key
        self.work = home / "work"
        self.work.mkdir(parents=True)
        places = {"name": "hub", "top": "", "provider": "", "sections": "", **(settings or {})}
        (home / "config.toml").write_text(CONFIG.format(url=url, model=model, **places))

    def run(self, *arguments: str, options: tuple[str, ...] = ()) -> CodexRun:
        """Run `codex exec`."""
        flags = ("--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", *options)
        done = subprocess.run(
            [str(program()), "exec", *flags, *arguments],
            cwd=self.work,
            env={"PATH": os.environ["PATH"], "HOME": str(self._home), "CODEX_HOME": str(self._home)}
            | {"HUB_KEY": self._key, "NO_PROXY": "127.0.0.1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
        return CodexRun([msgspec.json.decode(line) for line in lines], done.returncode, done.stderr.decode())


def program() -> Path:
    """The program, without the JavaScript that starts it."""
    machine = "arm64" if platform.machine() in ("aarch64", "arm64") else "x64"
    found = sorted(PACKAGE.glob(f"codex-*-{machine}/vendor/*/bin/codex"))
    assert found, "codex is not installed: make setup"
    return found[0]

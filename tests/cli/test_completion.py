"""Shell completion of values from a running hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import LIMIT, Hub, environ


def complete(line: str, hub: str) -> str:
    """What bash offers for the last word of a line; the program prints no error."""
    done = subprocess.run(
        ["env", Path(sys.executable).with_name("dragoman")],  # not forked: the name of the program matters
        env=environ(
            _DRAGOMAN_COMPLETE="complete_bash",
            COMP_WORDS=line,
            COMP_CWORD=str(len(line.split()) - 1),
            DRAGOMAN_HUB=hub,
        ),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dragoman ops schema math.calc", "math.calculate"),
        ("dragoman chat --agent def", "default"),
        ("dragoman sessions show no-such", ""),
    ],
)
def test_a_shell_completes_what_the_hub_has(hub: Hub, line: str, expected: str) -> None:
    assert complete(line, hub.url) == expected


def test_a_shell_gets_nothing_and_no_error_where_no_hub_answers() -> None:
    assert complete("dragoman ops schema m", "http://127.0.0.1:9") == ""

"""The tutorial: its files, commands and output are what they say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from dragoman.config import parse_config
from tests.cli.conftest import Run

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ dragoman (ops call \S+) --input '([^']*)'\n(.*)$", re.MULTILINE)


def test_the_operation_of_the_tutorial_is_called_as_it_shows(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-nobody")
    text = TUTORIAL.read_text(encoding="utf-8")
    blocks = BLOCK.findall(text)
    assert run("init", "--yes").code == 0
    operations = tmp_path / "operations.py"
    code = next(body for language, body in blocks if language == "python")
    operations.write_text(operations.read_text() + "\n\n" + code)
    called = COMMAND.search(text)
    assert called is not None
    result = run(*called[1].split(), "--input", called[2])
    assert (result.code, result.out.strip()) == (0, called[3])
    wrong = run(*called[1].split(), "--input", '{"celsius": "hot"}')
    assert (wrong.code, "celsius" in wrong.err + wrong.out) == (1, True)
    policy = yaml.safe_load(next(body for language, body in blocks if language == "yaml"))
    assert parse_config(policy).policy[0].ask

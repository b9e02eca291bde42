"""A hub with several models, and commands run in this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.cli import main
from tests.cli.program import Hub, Said, scripted, serving

Run = Callable[..., Said]
CALLS: dict[str, Any] = {
    "calls": [{"tool": "math.calculate", "input": {"expression": "6 * 7"}}, {"tool": "no.such", "input": {}}]
}
MODELS: dict[str, list[dict[str, Any]]] = {
    "plain": [{"text": "Good day.", "usage": {"inputTokens": 5, "outputTokens": 3, "totalTokens": 8}}],
    "tools": [
        {"reasoning": "I calculate.", "tools": [{"name": "hub_call", "input": CALLS}]},
        {"text": "It is 42."},
    ],
    "slow": [{"text": ["first ", *(f"word{n} " for n in range(2000))], "delay": 0.02}],
    "bad": [{"text": "Half", "error": {"message": "the model fell over"}}],
    "marked": [{"text": ["**Plan**\n\n| day | wh", "at |\n|---|---|\n| Mon | tea |\n"]}],
    "rude": [{"text": "\x1b]0;gotcha\x07plain \x1b[31mred"}],
}


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub without keys, whose models are those above; `plain/x` is the default."""
    folder = tmp_path_factory.mktemp("hub")
    providers = {name: scripted(folder, name, steps) for name, steps in MODELS.items()}
    config = {"providers": providers, "model": "plain/x"}
    with serving(folder, config, "--no-auth") as served:
        yield served


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Runs a command in this process, in an empty folder."""
    for name in [name for name in os.environ if name.startswith("DRAGOMAN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def command(*arguments: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(each) for each in arguments])
        printed = capsys.readouterr()
        code = ended.value.code
        return Said(code if isinstance(code, int) else 0, printed.out, printed.err)

    return command

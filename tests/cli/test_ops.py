"""`dragoman ops` at a running hub and in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.program import Hub

MINE = '''
from dragoman.operations.definitions.decorator import operation


@operation("mine", effect="read")
def greet(name: str, times: int = 1) -> str:
    """Greet somebody."""
    return f"Hello {name}! " * times


@operation("mine")
def fall() -> None:
    """Fail."""
    raise RuntimeError("fell over")
'''


@pytest.fixture(params=["here", "hub"])
def where(request: pytest.FixtureRequest, hub: Hub) -> tuple[str, ...]:
    """Without or with a hub."""
    return () if request.param == "here" else ("--hub", hub.url)


def test_operations_are_listed(run: Run, where: tuple[str, ...]) -> None:
    result = run("ops", "list", *where)
    assert result.code == 0
    assert "math.calculate" in result.out
    answer = run("ops", "list", "--namespace", "time", "--json", *where).json
    assert [each["id"] for each in answer["operations"]] == ["time.convert", "time.now"]
    assert answer["namespaces"] == {
        "artifacts": 2,
        "history": 2,
        "math": 1,
        "time": 2,
        "user": 1,
        "web": 2,
    }


def test_operations_are_found(run: Run, where: tuple[str, ...]) -> None:
    assert "time.now(timezone?: string)" in run("ops", "search", "current time", *where).out
    assert run("ops", "search", "current time", "--json", *where).json["tools"][0]["namespace"] == "time"
    nothing = run("ops", "search", "zzz", *where)
    assert (nothing.code, nothing.out) == (0, "")
    assert "Nothing fits" in nothing.err


def test_an_operation_is_shown_with_its_schemas(run: Run, where: tuple[str, ...]) -> None:
    shown = run("ops", "schema", "math.calculate", *where).json
    assert shown["effect"] == "read"
    assert shown["inputSchema"]["required"] == ["expression"]


def test_an_operation_is_called(run: Run, where: tuple[str, ...]) -> None:
    assert run("ops", "call", "math.calculate", "expression=6*7", *where).out == "42\n"
    raw = run("ops", "call", "math.calculate", "--input", '{"expression": "1+1"}', "--json", *where).json
    assert (raw["success"], raw["result"]) == (True, 2)


def test_a_call_that_fails_ends_with_1_and_says_what_to_mend(run: Run, where: tuple[str, ...]) -> None:
    result = run("ops", "call", "math.calculate", "exp=1", *where)
    assert (result.code, result.out) == (1, "")
    assert "expression" in result.err
    assert "ops schema math.calculate" in result.err
    failed = run("ops", "call", "math.calculate", "expression=1/0", "--json", *where)
    assert (failed.code, failed.json["success"]) == (1, False)
    assert run("ops", "call", "no.such", *where).code == 1


def test_operations_of_ones_own_are_loaded_from_a_file_and_from_the_configuration(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    result = run("ops", "call", "mine.greet", "name=7", "times=2", "--operations", "./mine.py")
    assert result.out == "Hello 7! Hello 7! \n"
    failed = run("ops", "call", "mine.fall", "--operations", "./mine.py")
    assert (failed.code, "fell over" in failed.err) == (1, True)
    (tmp_path / "dragoman.yaml").write_text("operations: [./mine.py]")
    assert "mine.greet" in run("ops", "list").out
    assert run("ops", "list", "--operations", "./none.py").code == 1


def test_a_module_of_this_folder_is_found_by_its_name(run: Run, tmp_path: Path) -> None:
    code = "from dragoman import operation\n\n@operation('here')\ndef hi() -> str:\n    return 'hi'\n"
    (tmp_path / "greetings_of_here.py").write_text(code)
    assert run("ops", "call", "here.hi", "--operations", "greetings_of_here").out.strip() == "hi"
    assert run("ops", "call", "here.hi", "--operations", "greetings_of_here:hi").out.strip() == "hi"

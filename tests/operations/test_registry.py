"""The registry: register, find, suggest, remove."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from dragoman.errors import ConfigError, Conflict, NotFound
from dragoman.operations import Context, Operation, Registry, operation


async def echo(input: Any, context: Context) -> Any:
    del context
    return input


def named(id: str) -> Operation:
    namespace, _, name = id.partition(".")
    return Operation.from_schema(echo, {}, namespace=namespace, name=name)


@operation("math", effect="read")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def test_functions_operations_and_modules_are_taken_in() -> None:
    module = ModuleType("some")
    module.__dict__["named"] = named("some.first")
    registry = Registry(double, named("time.now"))
    added = registry.add(module)
    assert [each.id for each in added] == ["some.first"]
    assert [each.id for each in registry.list()] == ["math.double", "some.first", "time.now"]
    assert [each.id for each in registry.list("time")] == ["time.now"]
    assert registry.namespaces() == {"math": 1, "some": 1, "time": 1}


def test_a_removed_operation_is_gone_and_its_id_free() -> None:
    registry = Registry(named("a.b"))
    assert registry.remove("a.b").id == "a.b"
    assert registry.namespaces() == {}
    with pytest.raises(NotFound):
        registry.get("a_b")
    registry.add(named("a.b"))
    assert registry.get("a.b").id == "a.b"


@pytest.mark.parametrize("spelling", ["files.read_all", "files_read_all", "Files.Read_All", "FILES_READ_ALL"])
def test_an_operation_is_found_in_either_spelling(spelling: str) -> None:
    assert Registry(named("files.read_all")).get(spelling).id == "files.read_all"


def test_an_id_never_means_an_operation_of_another_namespace() -> None:
    registry = Registry(named("git_create.issue"), named("git.create_branch"))
    with pytest.raises(NotFound):
        registry.get("git.create_issue")
    with pytest.raises(NotFound):
        registry.remove("git_create_issue")
    assert registry.get("git_create_issue").id == "git_create.issue"
    assert registry.get("git.create-branch").id == "git.create_branch"
    registry.add_supplier("git", Awaited())
    with pytest.raises(NotFound, match="There is no operation 'git_create_issue'"):
        registry.get("git_create_issue")


class Awaited:
    """What brings operations later."""

    async def wait_until_ready(self) -> None:
        """It takes long."""

    def unavailable_reason(self) -> str | None:
        return "git starts"


def test_an_ambiguous_spelling_is_refused_with_both_meanings() -> None:
    registry = Registry(named("a_b.c"), named("a.b_c"))
    assert registry.get("a.b_c").id == "a.b_c"
    with pytest.raises(NotFound) as error:
        registry.get("a_b_c")
    assert error.value.hint == "did you mean a.b_c or a_b.c?"


def test_an_unknown_operation_brings_suggestions() -> None:
    registry = Registry(named("math.calculate"), named("time.now"), named("time.convert"))
    with pytest.raises(NotFound) as error:
        registry.get("math.calculator")
    assert str(error.value) == "There is no operation 'math.calculator'."
    assert error.value.hint == "did you mean math.calculate?"


def test_suggestions_come_from_the_namespace_when_there_are_thousands() -> None:
    registry = Registry(*(named(f"space{index % 40}.tool_{index}") for index in range(2_000)))
    registry.add(named("weather.forecast"))
    with pytest.raises(NotFound) as error:
        registry.get("weather.forcast")
    assert error.value.hint is not None
    assert "weather.forecast" in error.value.hint


def test_a_taken_id_is_refused_and_nothing_of_the_module_is_taken_in() -> None:
    module = ModuleType("some")
    module.__dict__.update(first=named("new.first"), second=named("math.DOUBLE"))
    registry = Registry(double)
    with pytest.raises(Conflict, match=r"An operation 'math\.DOUBLE' already exists"):
        registry.add(module)
    assert [each.id for each in registry.list()] == ["math.double"]


def test_the_namespace_of_the_meta_tools_is_reserved() -> None:
    with pytest.raises(Conflict, match="the namespace 'hub' is reserved"):
        Registry(named("hub.extra"))


@pytest.mark.parametrize("thing", [print, ModuleType("empty")])
def test_what_is_no_operation_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigError, match="has no operations"):
        Registry(thing)


@pytest.mark.parametrize("id", [".x", "a b.x", "a.", "a.ümlaut", "x" * 65 + ".a", "a." + "x" * 129])
def test_odd_names_are_refused(id: str) -> None:
    with pytest.raises(ConfigError):
        named(id)

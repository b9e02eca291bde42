"""An agent is told of an argument of the wrong type when it is made, not in the middle of a run."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman import Agent, ConfigError, ScriptedModel
from dragoman.agent.argument_checks import AGENT_ARGUMENTS

WRONG: dict[str, list[Any]] = {
    "instructions": [3],
    "operations": [3, print],
    "mcp": [3],
    "limits": [{"max_steps": 2}, None, 5],
    "name": [3, None],
    "hooks": ["x", [print]],
    "context": ["truncate"],
    "retries": ["2", 1.5],
    "options": [3, "temperature"],
    "client_tools": [3, ["ask_user"]],
    "manual": ["no", None],
    "meta_tools": ["yes"],
    "prices": [3],
    "policy": ["deny", {"deny": "*"}, [{"deny": "*"}]],  # which would deny nothing
    "identity": ["ann", None],
    "on_prepare_step": [3],
}


def test_the_table_has_all_arguments() -> None:
    assert set(WRONG) == set(AGENT_ARGUMENTS)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_an_argument_of_the_wrong_type_is_refused_with_an_example(name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Agent(ScriptedModel(["hello"]), **{name: value})
    if name != "client_tools" or value == 3:
        assert name in caught.value.message
        assert caught.value.hint is not None
        assert f"{name}=" in caught.value.hint


async def test_the_options_of_a_run_are_checked_as_well() -> None:
    agent = Agent(ScriptedModel(["hello"]))
    wrong: list[dict[str, Any]] = [{"limits": {"max_steps": 2}}, {"context": "truncate"}, {"detached": "no"}]
    for options in wrong:
        with pytest.raises(ConfigError, match=next(iter(options))):
            agent.spawn("hello", **options)
    nothing: Any = {"limits": None, "client_tools": None}
    assert (await agent.run("hello", **nothing)).text == "hello"

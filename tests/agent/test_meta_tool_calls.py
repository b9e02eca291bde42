"""What cards and prompts show of a tool call: the operations that run, their arguments and effects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dragoman import Agent, ScriptedModel, operation, ui_stream
from dragoman.agent.meta_tool_calls import (
    MAX_INPUT_BYTES,
    MAX_TITLE,
    InnerCall,
    call_title,
    calls_metadata,
    part_title,
)
from dragoman.agent.tools.toolbox import Toolbox
from dragoman.identity import Identity
from dragoman.messages import ToolPart
from dragoman.operations import Calls, Context, Operation, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.providers.scripted import ScriptedCall
from tests.agent.scripted import add, calling
from tests.agent.test_ui_stream import frames_of
from tests.clients.driver import violations_in

SUM: dict[str, Any] = {"a": 1, "b": 2}
ENTRY: dict[str, Any] = {"tool": "math.add", "input": SUM}


@operation("lab", effect="once")
async def order(what: str) -> str:
    """Order something."""
    return what


def batch(*calls: Any) -> ScriptedCall:
    return ScriptedCall("hub_call", {"calls": list(calls)})


ORDER: dict[str, Any] = {"tool": "lab.order", "input": {"what": "x"}}
SCENES: dict[str, tuple[Any, str | None, list[tuple[str, str | None]]]] = {
    "one call": (batch(ENTRY), "math.add", [("math.add", "read")]),
    "a batch": (batch(ENTRY, ORDER), "math.add, lab.order", [("math.add", "read"), ("lab.order", "once")]),
    "the same twice": (batch(ENTRY, ENTRY), "math.add ×2", [("math.add", "read")] * 2),
    "another spelling": (batch({**ENTRY, "tool": "MATH_add"}), "math.add", [("math.add", "read")]),
    "a single call without a list": (
        ScriptedCall("hub_call", dict(ORDER)),
        "lab.order",
        [("lab.order", "once")],
    ),
    "an operation that is not there": (batch({"tool": "no.such"}), "no.such", [("no.such", None)]),
    "a pinned operation": (ScriptedCall("math_add", SUM), "math.add", [("math.add", "read")]),
    "a search": (ScriptedCall("hub_search", {"q": "add"}), None, []),
    "a batch that is none": (ScriptedCall("hub_call", {"calls": 3}), None, []),
}


@pytest.mark.parametrize("scene", SCENES)
async def test_a_call_has_its_operations_as_title_and_in_its_metadata(scene: str) -> None:
    call, title, calls = SCENES[scene]
    pinned = call.name == "math_add"
    agent = Agent(ScriptedModel([calling(call), "Done."]), operations=[add, order], meta_tools=not pinned)
    run = agent.spawn("go")
    frames = frames_of(b"".join([part async for part in ui_stream(run)]).decode())
    [frame] = [each for each in frames if each["type"] == "tool-input-available"]
    metadata = frame.get("providerMetadata", {}).get("dragoman", {"calls": []})
    assert frame.get("title") == title
    assert [(each["operation"], each.get("effect")) for each in metadata["calls"]] == calls
    assert all(each["input"] in (SUM, {"what": "x"}, {}) for each in metadata["calls"])
    [part] = (await run.result).messages[-1].tool_calls
    assert (part.title, (part.call_provider_metadata or {}).get("dragoman", {"calls": []})) == (
        title,
        metadata,
    )


def test_clients_of_all_versions_take_title_and_metadata() -> None:
    frames = [
        {"type": "start", "messageId": "m"},
        {"type": "start-step"},
        {"type": "tool-input-start", "toolCallId": "c", "toolName": "hub_call"},
        {
            "type": "tool-input-available",
            "toolCallId": "c",
            "toolName": "hub_call",
            "input": {"calls": [ENTRY]},
            "title": "math.add",
            "providerMetadata": calls_metadata([InnerCall("math.add", SUM, "read")]),
        },
        {"type": "tool-output-available", "toolCallId": "c", "output": [{"success": True, "result": 3}]},
        {"type": "finish-step"},
        {"type": "finish"},
    ]
    body = "".join(f"data: {json.dumps(frame)}\n\n" for frame in frames) + "data: [DONE]\n\n"
    assert violations_in([{"body": body, "method": "POST"}]) == [[]]


async def test_nothing_is_told_of_operations_that_the_caller_cannot_see() -> None:
    async def nothing(*_: Any) -> None: ...

    hidden = Operation.from_schema(
        nothing, {}, namespace="far", name="work", effect="read", owner="bob", private=True
    )
    registry = Registry(hidden)
    async with Calls(registry, MemoryLedger()) as calls:
        box = Toolbox(calls, MetaTools(registry, calls), registry=registry)
        for name in ("FAR.work", "far_work", "far.none"):
            context = Context(identity=Identity(owner="ann"))
            [call] = box.inner_calls("hub_call", {"calls": [{"tool": name}]}, context=context)
            assert (call.operation, call.effect) == (name, None)
        own = Context(identity=Identity(owner="bob"))
        [call] = box.inner_calls("hub_call", {"calls": [{"tool": "FAR.work"}]}, context=own)
        assert (call.operation, call.effect) == ("far.work", "once" if hidden.effect_claimed else "read")


def test_long_titles_and_arguments_are_bounded() -> None:
    title = call_title([f"namespace{n}.operation" for n in range(32)])
    assert title is not None
    assert len(title) <= MAX_TITLE + len(" and 32 more")
    assert title.endswith(" more")
    big = {"text": "x" * MAX_INPUT_BYTES}
    calls = calls_metadata([InnerCall("a.small", SUM, "read"), InnerCall("a.big", big, "once")])
    assert calls == {
        "dragoman": {
            "calls": [
                {"operation": "a.small", "effect": "read", "input": SUM},
                {"operation": "a.big", "effect": "once"},
            ]
        }
    }


def test_a_stored_call_without_a_title_is_named_by_what_it_runs() -> None:
    part = ToolPart(type="tool-hub_call", tool_call_id="c", state="input-available", input={"calls": [ENTRY]})
    assert part_title(part) == "math.add"
    assert part_title(ToolPart(type="tool-x", tool_call_id="c", state="input-streaming")) == "x"

"""The four meta-tools."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from dragoman.errors import CallError, NotFound
from dragoman.operations import Calls, Context, Operation, Registry, operation
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import META_TOOLS, MetaTools, meta_tool_id
from dragoman.operations.outcome import CallOutcome
from tests.waiting import LIMIT

BYTES = "0dcd07715cec3c0124ad9012eb24dd2052e2372350e9250804b21d2c54e37301"
ALONE = "`calls` must be a list; the single call was taken as a list of one"
TEXT = "`input` was JSON in a string; send the object itself"
BESIDE = "arguments belong in `input`; they were taken from beside it"


@operation("math", effect="read")
async def double(number: Annotated[int, Field(description="What to double.")]) -> int:
    """Double a number.

    It is then twice as large.
    """
    return 2 * number


@operation("math", effect="read")
async def fail(message: str = "it broke") -> None:
    """Fail."""
    raise CallError(message, hint="do not call this")


class Hub:
    """The meta-tools over a registry, with everything that they wrote down."""

    def __init__(self, registry: Registry, calls: Calls, ledger: MemoryLedger) -> None:
        self.meta = MetaTools(registry, calls)
        self.ledger = ledger

    async def run(self, name: str, input: Mapping[str, Any]) -> CallOutcome:
        place = Context(run_id="run", tool_call_id="tool")
        return await self.meta.run(name, input, context=place)

    async def call(self, *calls: Any) -> Any:
        return (await self.run("hub_call", {"calls": list(calls)})).unwrap()


@asynccontextmanager
async def hub(*things: Any) -> AsyncIterator[Hub]:
    registry, ledger = Registry(*(things or (double, fail))), MemoryLedger()
    async with Calls(registry, ledger) as calls, asyncio.timeout(LIMIT):
        yield Hub(registry, calls, ledger)


def foreign(namespace: str, name: str, description: str) -> Operation:
    async def nothing(*_: Any) -> None: ...

    return Operation.from_schema(nothing, {}, namespace=namespace, name=name, description=description)


@pytest.mark.promise("meta-tools-never-change")
def test_the_bytes_of_the_meta_tools_never_change() -> None:
    assert hashlib.sha256(msgspec.json.encode(META_TOOLS)).hexdigest() == BYTES


def test_the_meta_tools_have_names_that_every_wire_lets_through() -> None:
    assert [tool.name for tool in META_TOOLS] == ["hub_list", "hub_search", "hub_schema", "hub_call"]


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("hub.call", "hub.call"),
        ("hub_call", "hub.call"),
        ("hub_search", "hub.search"),
        ("hub.schema", "hub.schema"),
        ("hub_list", "hub.list"),
        ("hub-call", None),
        ("hub", None),
        ("call", None),
        ("hub_call_", None),
        ("hub..call", None),
        ("math.double", None),
    ],
)
def test_both_spellings_of_a_meta_tool_are_known_and_no_others(name: str, canonical: str | None) -> None:
    assert meta_tool_id(name) == canonical


async def test_what_is_no_meta_tool_is_refused() -> None:
    async with hub() as here:
        with pytest.raises(NotFound, match=r"There is no meta-tool 'math\.double'"):
            await here.run("math.double", {})


async def test_list_shows_namespaces_and_operations() -> None:
    async with hub(double, fail, foreign("mail", "send", "Send a mail.\n\nWith much care.")) as here:
        assert (await here.run("hub.list", {})).result == {
            "namespaces": {"math": 2, "mail": 1},
            "tools": [
                {"tool": "mail.send", "summary": "Send a mail."},
                {"tool": "math.double", "summary": "Double a number."},
                {"tool": "math.fail", "summary": "Fail."},
            ],
            "more": 0,
        }
        assert (await here.run("hub_list", {"namespace": "mail"})).result == {
            "namespaces": {"mail": 1},
            "tools": [{"tool": "mail.send", "summary": "Send a mail."}],
            "more": 0,
        }


async def test_list_of_a_namespace_that_is_not_there_names_those_that_are() -> None:
    async with hub() as here:
        outcome = await here.run("hub_list", {"namespace": "mail"})
        assert outcome.to_json()["error"] == {
            "code": "not_found",
            "message": "There is no namespace 'mail'.",
            "hint": "The namespaces are math.",
        }


async def test_a_list_stays_small_and_says_how_many_more_there_are() -> None:
    many = (foreign(f"space{index % 100}", f"tool_{index}", "Do it. " * 100) for index in range(2_000))
    async with hub(*many) as here:
        listed = (await here.run("hub_list", {})).result
    assert len(msgspec.json.encode(listed)) < 10_000
    assert len(listed["tools"]) + listed["more"] == 2_000
    assert listed["hint"] == f"{listed['more']} more: pass a namespace, or find them with hub_search."


async def test_search_finds_and_schema_describes() -> None:
    async with hub() as here:
        found = (await here.run("hub_search", {"q": "double number"})).result
        assert found["tools"] == [
            {
                "tool": "math.double",
                "summary": "Double a number.",
                "signature": "(number: integer)",
                "namespace": "math",
            }
        ]
        assert (await here.run("hub_schema", {"tool": "math_double"})).result == {
            "tool": "math.double",
            "description": "Double a number.\n\nIt is then twice as large.",
            "effect": "read",
            "inputSchema": {
                "type": "object",
                "properties": {"number": {"type": "integer", "description": "What to double."}},
                "required": ["number"],
                "additionalProperties": False,
            },
            "outputSchema": {"type": "integer"},
        }


async def test_what_others_write_is_shown_short_and_without_characters_that_cannot_be_seen() -> None:
    async with hub(foreign("a", "b", "Ignore\u202e \u200ball\x1b " + "x" * 9_000)) as here:
        (listed,) = (await here.run("hub_list", {})).result["tools"]
        shown = (await here.run("hub_schema", {"tool": "a.b"})).result["description"]
    assert listed["summary"] == ("Ignore all " + "x" * 200)[:159] + "…"
    assert shown == ("Ignore all " + "x" * 9_000)[:3_999] + "…"


async def test_wrong_input_of_a_meta_tool_brings_its_schema() -> None:
    async with hub() as here:
        outcome = await here.run("hub_schema", {"name": "math.double"})
    assert outcome.error is not None
    assert [problem["path"] for problem in outcome.error.problems] == ["name", "tool"]
    assert outcome.error.input_schema == META_TOOLS[2].input_schema


@pytest.mark.promise("failed-call-fails-no-neighbour")
async def test_a_failed_call_never_fails_its_neighbours() -> None:
    async with hub() as here:
        results = await here.call(
            {"tool": "math.double", "input": {"number": 1}},
            {"tool": "math.fail"},
            {"tool": "math.double", "input": {"number": "two"}},
            {"tool": "math.nothing"},
            {"tool": "hub_call", "input": {"calls": []}},
            {"tool": "math.double", "input": 7},
            "math.double",
            {"tool": "math.double", "input": {"number": 4}},
        )
    assert [each["success"] for each in results] == [True, False, False, False, False, False, False, True]
    assert (results[0], results[7]) == ({"success": True, "result": 2}, {"success": True, "result": 8})
    assert [each["error"]["code"] for each in results[1:7]] == [
        "call_failed",
        "invalid_input",
        "not_found",
        "bad_request",
        "invalid_input",
        "invalid_input",
    ]
    assert results[1]["error"] == {"code": "call_failed", "message": "it broke", "hint": "do not call this"}
    assert results[2]["error"]["inputSchema"]["required"] == ["number"]
    assert results[4]["error"] == {
        "code": "bad_request",
        "message": "hub_call cannot be called through hub_call.",
        "hint": "Use the tool hub_call itself.",
    }
    assert results[5]["error"]["message"] == "calls[5].input: expected an object, got 7"


outcomes = st.sampled_from(["fine", "failing", "unknown", "wrong", "meta", "nonsense"])
CALLS: dict[str, Any] = {
    "fine": {"tool": "math.double", "input": {"number": 21}},
    "failing": {"tool": "math.fail", "input": {}},
    "unknown": {"tool": "nowhere.at_all"},
    "wrong": {"tool": "math.double", "input": {"number": []}},
    "meta": {"tool": "hub.search", "input": {"q": "x"}},
    "nonsense": 3,
}


@given(st.lists(outcomes, min_size=1, max_size=32))
def test_every_call_of_a_batch_has_its_own_result_in_its_place(kinds: list[str]) -> None:
    async def run() -> list[dict[str, Any]]:
        async with hub() as here:
            results: list[dict[str, Any]] = await here.call(*(CALLS[kind] for kind in kinds))
            return results

    results = asyncio.run(run())
    assert [each["success"] for each in results] == [kind == "fine" for kind in kinds]
    assert all(("result" in each) == each["success"] != ("error" in each) for each in results)


async def test_the_calls_of_a_batch_run_at_the_same_time() -> None:
    together = asyncio.Barrier(3)

    @operation("t")
    async def meet() -> str:
        async with together:
            return "met"

    async with hub(meet) as here:
        assert await here.call(*[{"tool": "t.meet"}] * 3) == [{"success": True, "result": "met"}] * 3


async def test_a_batch_is_one_call_in_the_tree_with_its_calls_below_it() -> None:
    async with hub() as here:
        outcome = await here.run("hub_call", {"calls": [CALLS["fine"], CALLS["failing"], CALLS["unknown"]]})
        (top,) = here.ledger.children(None)
        below = here.ledger.children(outcome.call_id)
    assert (top.record.id, top.record.operation, top.status) == (outcome.call_id, "hub.call", "done")
    assert top.record.idempotency_key == "run:tool"
    assert [(each.record.operation, each.status, each.record.idempotency_key) for each in below] == [
        ("math.double", "done", "run:tool:0"),
        ("math.fail", "failed", "run:tool:1"),
        ("nowhere.at_all", "failed", "run:tool:2"),
    ]


@pytest.mark.promise("cancelled-call-cancels-its-children")
async def test_cancelling_a_batch_cancels_its_calls() -> None:
    waiting = asyncio.Barrier(3)

    @operation("t")
    async def wait() -> None:
        await waiting.wait()
        await asyncio.Event().wait()

    async with hub(wait) as here:
        task = asyncio.create_task(here.call({"tool": "t.wait"}, {"tool": "t.wait"}))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        (top,) = here.ledger.children(None)
        assert top.status == "aborted"
        assert [each.status for each in here.ledger.children(top.record.id)] == ["aborted", "aborted"]


@pytest.mark.parametrize(
    ("input", "notes"),
    [
        ({"calls": [{"tool": "math.double", "input": {"number": 4}}]}, None),
        ({"calls": [{"tool": "math_double", "input": {"number": 4}}]}, None),
        ({"calls": {"tool": "math.double", "input": {"number": 4}}}, [ALONE]),
        ({"tool": "math.double", "input": {"number": 4}}, [ALONE]),
        ({"calls": [{"tool": "math.double", "input": '{"number": 4}'}]}, [TEXT]),
        ({"calls": [{"tool": "math.double", "arguments": {"number": 4}}]}, [BESIDE]),
        ({"calls": [{"tool": "math.double", "number": 4}]}, [BESIDE]),
        ({"calls": [{"tool": "math.double", "args": '{"number": 4}'}]}, [BESIDE, TEXT]),
        (
            {"calls": '[{"tool": "math.double", "input": {"number": 4}}]'},
            ["`calls` was JSON in a string; send the list itself"],
        ),
    ],
)
async def test_a_near_miss_is_repaired_and_noted(input: dict[str, Any], notes: list[str] | None) -> None:
    expected: dict[str, Any] = {"success": True, "result": 8}
    async with hub() as here:
        outcome = await here.run("hub_call", input)
    assert outcome.result == [expected if notes is None else {**expected, "notes": notes}]


@pytest.mark.parametrize(
    ("input", "message"),
    [
        ({}, "calls: expected a value (required), got nothing"),
        ({"calls": []}, "calls: expected a list of 1 to 32 calls, got []"),
        ({"calls": [{"tool": "a.b"}] * 33}, 'calls: expected a list of 1 to 32 calls, got [{"tool":"a.b"}'),
        ({"calls": "do it"}, 'calls: expected a list of 1 to 32 calls, got "do it"'),
        ({"calls": [], "dry": True}, "dry: expected no field of this name, got true"),
    ],
)
async def test_what_is_no_batch_is_refused_with_the_schema(input: dict[str, Any], message: str) -> None:
    async with hub() as here:
        outcome = await here.run("hub_call", input)
    assert outcome.error is not None
    assert outcome.error.message.startswith(message)
    assert outcome.error.input_schema == META_TOOLS[3].input_schema


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ({"tool": "math.double", "input": {"number": 1}, "dry": True}, "calls[0].dry"),
        ({"tool": "math.double", "input": "number 4"}, "calls[0].input"),
        ({"tool": 4}, "calls[0].tool"),
        ({"name": "math.double"}, "calls[0].tool"),
    ],
)
async def test_an_entry_that_cannot_be_repaired_names_its_place(call: Any, path: str) -> None:
    async with hub() as here:
        (result,) = await here.call(call)
    assert [problem["path"] for problem in result["error"]["problems"]] == [path]

"""Calls: results, errors and their records."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import gc
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest
from pydantic import BaseModel

from dragoman.errors import CallError, NotFound, StoreError
from dragoman.identity import Identity
from dragoman.operations import Calls, Context, Operation, Registry, current, operation
from dragoman.operations.call_dispatcher import CallSettings
from dragoman.operations.ledger import CallCompletion, CallRecord, LedgerEntry, MemoryLedger, hash_input
from dragoman.operations.operation import Effect
from dragoman.operations.outcome import CallOutcome
from tests.waiting import LIMIT

ALICE = Identity(owner="alice")


@operation("t", effect="read")
async def add(first: int, second: int = 1) -> int:
    """Add two numbers."""
    return first + second


@operation("t")
def block(number: int) -> tuple[int, bool]:
    """Say whether this runs off the main thread."""
    return number, threading.current_thread() is not threading.main_thread()


async def once(
    thing: Any, input: Any = None, *, context: Context | None = None, **options: Any
) -> CallOutcome:
    """The outcome of one call to a lone operation."""
    registry = Registry(thing)
    (found,) = registry.list()
    async with Calls(registry, MemoryLedger(), **options) as calls:
        return await calls.call(found.id, input, context=context or Context())


def failing(error: BaseException) -> Operation:
    async def fail(*_: Any) -> Any:
        raise error

    return Operation.from_schema(fail, {}, namespace="t", name="fail")


def giving(value: Any) -> Operation:
    async def give(*_: Any) -> Any:
        return value

    return Operation.from_schema(give, {}, namespace="t", name="give")


async def test_a_call_is_written_down_before_it_runs_and_when_it_has_ended() -> None:
    ledger = MemoryLedger()
    seen: list[LedgerEntry] = []

    @operation("t", effect="idempotent")
    async def look(word: str, context: Context) -> str:
        assert context.call_id is not None
        seen.append(ledger.get(context.call_id))
        return word.upper()

    times = iter([10.0, 12.5])
    async with Calls(Registry(look), ledger, clock=lambda: next(times)) as calls:
        place = Context(
            identity=ALICE, parent_id="step_1", run_id="run_1", session_id="s_1", tool_call_id="tc_1"
        )
        outcome = await calls.call("t.look", {"word": "hi"}, context=place)
    record = CallRecord(
        id=outcome.call_id,
        operation="t.look",
        effect="idempotent",
        owner="alice",
        input={"word": "hi"},
        input_hash=hash_input({"word": "hi"}),
        idempotency_key="run_1:tc_1",
        started_at=10.0,
        parent_id="step_1",
        run_id="run_1",
        session_id="s_1",
        tool_call_id="tc_1",
    )
    assert seen == [LedgerEntry(record=record, status="running")]
    assert ledger.get(outcome.call_id) == LedgerEntry(
        record=record, status="done", ended_at=12.5, result="HI"
    )
    assert outcome == CallOutcome(call_id=record.id, operation="t.look", ok=True, result="HI")


def test_the_hash_of_an_input_does_not_depend_on_the_order_of_its_keys() -> None:
    assert hash_input({"a": 1, "b": {"c": 2, "d": 3}}) == hash_input({"b": {"d": 3, "c": 2}, "a": 1})
    assert hash_input({"a": 1}) != hash_input({"a": 1.5})


async def test_a_sync_function_runs_in_a_thread_with_its_context() -> None:
    assert (await once(block, {"number": 3})).result == [3, True]

    @operation("t")
    def whose() -> str:
        return current().identity.owner

    assert (await once(whose, context=Context(identity=ALICE))).result == "alice"


async def test_sync_functions_share_a_bounded_number_of_threads() -> None:
    running = 0
    most = 0
    lock = threading.Lock()
    both = threading.Barrier(2)

    @operation("t")
    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        both.wait(LIMIT)
        with lock:
            running -= 1
        both.wait(LIMIT)

    async with Calls(Registry(work), MemoryLedger(), settings=CallSettings(threads=2)) as calls:
        outcomes = await asyncio.gather(*(calls.call("t.work", context=Context()) for _ in range(6)))
    assert [outcome.ok for outcome in outcomes] == [True] * 6
    assert most == 2


async def test_wrong_input_is_named_field_by_field_and_brings_the_whole_schema() -> None:
    outcome = await once(add, {"first": "one", "third": 3})
    (schema,) = (each.input_schema for each in Registry(add).list())
    assert outcome.to_json() == {
        "success": False,
        "error": {
            "code": "invalid_input",
            "message": 'first: expected a valid integer, got "one"; '
            "third: expected no field of this name, got 3",
            "problems": [
                {"path": "first", "expected": "a valid integer", "got": '"one"'},
                {"path": "third", "expected": "no field of this name", "got": "3"},
            ],
            "inputSchema": schema,
        },
    }


@pytest.mark.parametrize(("input", "got"), [([1], "[1]"), ("first", '"first"'), (7, "7")])
async def test_input_that_is_no_object_is_refused(input: Any, got: str) -> None:
    outcome = await once(add, input)
    assert outcome.error is not None
    assert outcome.error.message == f"input: expected an object, got {got}"


async def test_input_that_is_no_json_is_refused_and_the_call_is_not_run() -> None:
    outcome = await once(giving("ran"), {"x": object()})
    assert outcome.error is not None
    assert outcome.error.code == "invalid_input"
    assert "expected JSON (Encoding objects of type object is unsupported)" in outcome.error.message


async def test_an_unknown_operation_is_a_failure_with_suggestions() -> None:
    ledger = MemoryLedger()
    async with Calls(Registry(add), ledger) as calls:
        outcome = await calls.call("t.ad", {"x": 1}, context=Context())
    assert outcome.to_json() == {
        "success": False,
        "error": {
            "code": "not_found",
            "message": "There is no operation 't.ad'.",
            "hint": "did you mean t.add?",
        },
    }
    assert ledger.get(outcome.call_id).status == "failed"


class Unspeakable(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Unspeakable(), "call_failed", "Unspeakable"),
        (ValueError("too hot"), "call_failed", "ValueError: too hot"),
        (KeyError(), "call_failed", "KeyError"),
        (NotFound("no such book"), "not_found", "no such book"),
        (CallError("broken"), "call_failed", "broken"),
        (TimeoutError("theirs"), "call_failed", "TimeoutError: theirs"),
        (SystemExit(3), "call_failed", "SystemExit: 3"),
        (KeyboardInterrupt(), "call_failed", "KeyboardInterrupt"),
        (GeneratorExit(), "call_failed", "the operation raised GeneratorExit"),
        (BaseExceptionGroup("all", [SystemExit(3)]), "call_failed", "SystemExit: 3"),
        (asyncio.CancelledError(), "call_failed", "The operation cancelled its own task."),
        (
            ExceptionGroup("many", [ValueError("a"), KeyError("b")]),
            "call_failed",
            "ValueError: a; KeyError: 'b'",
        ),
        (
            RuntimeError("\x1b[31mred\u202e" + "!" * 3_000),
            "call_failed",
            ("RuntimeError: [31mred" + "!" * 2_000)[:1_999] + "…",
        ),
    ],
)
async def test_what_a_function_raises_becomes_a_failure(
    error: BaseException, code: str, message: str
) -> None:
    outcome = await once(failing(error))
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == (code, message)


async def test_the_traceback_goes_to_the_log_and_not_to_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        outcome = await once(failing(ValueError("too hot")))
    assert "Traceback" in caplog.text
    assert "Traceback" not in str(outcome.to_json())


@pytest.mark.parametrize("error", [StopIteration(), SystemExit(1), KeyboardInterrupt()])
async def test_nothing_that_a_sync_function_raises_ends_the_process(error: BaseException) -> None:
    @operation("t")
    def leave() -> None:
        raise error

    outcome = await once(leave)
    assert outcome.error is not None
    assert outcome.error.message == f"The operation raised {type(error).__name__}."


def decorated(function: Callable[[int], Any]) -> Callable[[int], Any]:
    """Hide that a function is async, as many decorators do."""

    @functools.wraps(function)
    def call(x: int) -> Any:
        return function(x)

    return call


async def coroutine(x: int) -> int:
    return x


async def async_values(x: int) -> AsyncIterator[int]:
    yield 0
    yield x


def values(x: int) -> Iterator[int]:
    yield 0
    yield x


@pytest.mark.parametrize("function", [coroutine, async_values, values])
async def test_a_decorator_may_hide_that_a_function_is_async_or_a_generator(function: Any) -> None:
    outcome = await once(operation("t")(decorated(function)), {"x": 5})
    assert outcome.result == 5


def test_a_program_that_ends_at_any_step_of_a_call_leaves_no_coroutine(
    recwarn: pytest.WarningsRecorder,
) -> None:
    async def leave(steps: int) -> None:
        calls = Calls(Registry(add), MemoryLedger())
        task = asyncio.ensure_future(calls.call("t.add", {"first": 1}, context=Context()))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.set_name("left to asyncio.run, which cancels all tasks at once")

    gc.collect()
    recwarn.clear()  # of what earlier tests have left
    for steps in range(8):
        asyncio.run(leave(steps))
    gc.collect()
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []


class Model(BaseModel):
    at: dt.date


@dataclass
class Pair:
    left: Any
    right: Any


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, None),
        (Model(at=dt.date(2026, 2, 3)), {"at": "2026-02-03"}),
        (Pair(uuid.UUID(int=7), {1}), {"left": "00000000-0000-0000-0000-000000000007", "right": [1]}),
        ([PurePosixPath("a/b"), ValueError("x")], ["a/b", "ValueError: x"]),
        (float("nan"), None),
        (2**70, 2**70),
    ],
)
async def test_results_are_made_json(value: Any, result: Any) -> None:
    assert (await once(giving(value))).result == result


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object(), "The result, a value of type object, cannot be encoded as JSON: objects of type object"),
        ([1, float("nan")], "The result, a value of type list, cannot be encoded as JSON: it contains nan"),
        ({(1, 2): 3}, "The result, a value of type dict, cannot be encoded as JSON: "),
    ],
)
async def test_a_result_that_cannot_be_json_is_a_failure_that_says_so(value: Any, message: str) -> None:
    outcome = await once(giving(value))
    assert outcome.error is not None
    assert outcome.error.message.startswith(message)


async def test_a_result_that_holds_itself_is_a_failure() -> None:
    knot: list[Any] = []
    knot.append(knot)
    assert not (await once(giving(knot))).ok


class BrokenLedger(MemoryLedger):
    """A ledger whose disk is full."""

    def __init__(self, *, broken: str) -> None:
        super().__init__()
        self._broken = broken

    async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
        if self._broken == "begin":
            raise StoreError("disk full")
        await super().record_start(record)

    async def record_end(self, call_id: str, completion: CallCompletion, *, wait: bool = True) -> None:
        if self._broken == "end":
            raise StoreError("disk full")
        await super().record_end(call_id, completion, wait=wait)


async def run_on(ledger: MemoryLedger) -> tuple[CallOutcome, list[str]]:
    ran: list[str] = []

    @operation("t")
    async def act() -> str:
        ran.append("act")
        return "acted"

    async with Calls(Registry(act), ledger) as calls:
        return await calls.call("t.act", context=Context()), ran


async def test_a_call_that_cannot_be_written_down_is_not_run() -> None:
    outcome, ran = await run_on(BrokenLedger(broken="begin"))
    assert ran == []
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.transient) == ("unavailable", True)


@pytest.mark.parametrize(
    ("effect", "only_stores", "waits"),
    [("once", False, True), ("idempotent", False, True), ("idempotent", True, False), ("read", False, False)],
)
async def test_a_call_waits_for_its_record_unless_it_only_reads_or_writes_to_the_same_database(
    effect: Effect, only_stores: bool, waits: bool
) -> None:
    class Waits(MemoryLedger):
        async def record_start(self, record: CallRecord, *, wait: bool = True) -> None:
            assert wait is waits
            await super().record_start(record)

    async def act(_input: Any, _context: Context) -> str:
        return "acted"

    wanted = Operation.from_schema(
        act, {"type": "object"}, namespace="t", name="act", effect=effect, only_stores=only_stores
    )
    async with Calls(Registry(wanted), Waits()) as calls:
        assert (await calls.call("t.act", context=Context())).ok


async def test_the_result_of_a_call_whose_end_cannot_be_written_down_is_not_lost() -> None:
    outcome, ran = await run_on(BrokenLedger(broken="end"))
    assert (ran, outcome.result) == (["act"], "acted")


async def test_a_memory_ledger_forgets_the_oldest_calls() -> None:
    ledger = MemoryLedger(max_calls=2)
    async with Calls(Registry(add), ledger) as calls:
        ids = [(await calls.call("t.add", {"first": 1}, context=Context())).call_id for _ in range(3)]
    with pytest.raises(NotFound):
        ledger.get(ids[0])
    assert [entry.record.id for entry in ledger.children(None)] == ids[1:]


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Which\u202e one\x00"},
        "days": {"type": "array", "items": {"type": ["integer", "null"], "minimum": 1}},
        "unit": {"enum": ["C", "F"]},
        "where": {"anyOf": [{"type": "string"}, {"type": "object", "required": ["lat"]}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}


async def test_operations_made_from_a_schema_are_checked_by_it() -> None:
    async def echo(input: Any, _context: Context) -> Any:
        return input

    forecast = Operation.from_schema(
        echo, SCHEMA, namespace="weather", name="forecast", description="Fore\u200bcast.", effect="read"
    )
    assert forecast.description == "Forecast."
    assert forecast.input_schema["properties"]["city"]["description"] == "Which one"
    assert (await once(forecast, {"city": "Split", "days": [1, None]})).result == {
        "city": "Split",
        "days": [1, None],
    }
    outcome = await once(forecast, {"days": [0, "x"], "unit": "K", "where": 5, "wind": True})
    assert outcome.error is not None
    assert outcome.error.problems == [
        {"path": "days[0]", "expected": "at least 1", "got": "0"},
        {"path": "days[1]", "expected": "integer or null", "got": '"x"'},
        {"path": "unit", "expected": 'one of "C", "F"', "got": '"K"'},
        {"path": "where", "expected": "string or object", "got": "5"},
        {
            "path": "wind",
            "expected": "no field of this name; there are `city`, `days`, `unit`, `where`",
            "got": "true",
        },
        {"path": "city", "expected": "a value (required): string", "got": "nothing"},
    ]
    assert outcome.error.input_schema == forecast.input_schema


@pytest.mark.parametrize("schema", [{"type": "nothing"}, {"$ref": "http://127.0.0.1:9/schema.json"}])
def test_an_invalid_schema_and_a_reference_to_another_document_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(Exception, match="The input schema is not a valid JSON Schema") as error:
        Operation.from_schema(failing(ValueError()).run, schema, namespace="a", name="b")
    assert type(error.value).__name__ == "ConfigError"


def test_a_context_outside_of_a_call_cannot_call() -> None:
    with pytest.raises(CallError, match="No operation is running here"):
        current()


async def test_a_context_that_is_in_no_call_says_so() -> None:
    with pytest.raises(CallError, match="This context does not belong to a running call"):
        await Context().call("t.add")

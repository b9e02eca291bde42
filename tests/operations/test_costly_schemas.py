"""Schemas of other programs that cost much to compile, or to check a value against, hold no event loop."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import pytest

from dragoman.errors import InvalidInput
from dragoman.operations import Calls, Context, Registry, operation
from dragoman.operations.arguments.validation import make_bounded_parser
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.operation import Operation
from dragoman.operations.outcome import CallOutcome
from tests.loop_lag import MOST, best_lag
from tests.operations.large_schemas import HOSTILE, HOSTILE_ERRORS, LARGE, Schema, with_fields


async def run(input: Any, _: Context) -> str:
    return f"ran with {' and '.join(input)}"


async def register(schema: Schema) -> Operation:
    return Operation.from_schema(run, {"type": "object", **schema}, namespace="far", name="go")


async def test_a_small_schema_whose_cost_multiplies_holds_no_event_loop() -> None:
    lags: dict[str, float] = {}
    for name, (schema, input) in HOSTILE.items():
        made, lags[f"{name}, registered"] = await best_lag(partial(register, schema))
        async with Calls(Registry(made), MemoryLedger()) as calls:
            call = partial(calls.call, "far.go", input, context=Context(for_model=True))  # may be repaired
            outcome, lags[f"{name}, called"] = await best_lag(call)
        assert outcome.result == f"ran with {' and '.join(input)}", outcome.error  # not checked
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_many_errors_about_one_large_value_hold_no_event_loop() -> None:
    lags: dict[str, float] = {}
    for name, (schema, input) in HOSTILE_ERRORS.items():
        async with Calls(Registry(await register(schema)), MemoryLedger()) as calls:
            call = partial(calls.call, "far.go", input, context=Context(for_model=True))
            outcome, lags[name] = await best_lag(call)
        assert outcome.error is not None, name
        assert outcome.error.code in ("invalid_input", "repeated_failure"), name
    assert {name: lag for name, lag in lags.items() if lag > MOST} == {}


async def test_wide_integers_for_a_set_of_an_operation_are_refused_instead_of_compared_in_pairs() -> None:
    @operation("near", effect="read")
    def total(numbers: set[int]) -> int:
        """Add."""
        return sum(numbers)

    wide = [2**70 + each for each in range(1_000)]
    async with Calls(Registry(total), MemoryLedger()) as calls:
        outcome, lag = await best_lag(partial(calls.call, "near.total", {"numbers": wide}, context=Context()))
        few = await calls.call("near.total", {"numbers": wide[:50]}, context=Context())
    assert few.result == sum(wide[:50])
    assert outcome.error is not None
    assert "fewer integers of more than 64 bits" in outcome.error.message
    assert lag <= MOST


async def test_misspelt_fields_of_a_schema_with_thousands_hold_no_event_loop() -> None:
    fields = {f"field_{number}_name": {"type": "string"} for number in range(10_000)}
    operation = await register({"properties": fields, "additionalProperties": False})
    wrong = {f"field_{number}_nam": "x" for number in range(900)}
    tries = count()
    async with Calls(Registry(operation), MemoryLedger()) as calls:

        async def call() -> CallOutcome:  # with other arguments each time: the same would be refused at once
            return await calls.call("far.go", {**wrong, "x": next(tries)}, context=Context(for_model=True))

        outcome, lag = await best_lag(call)
    assert outcome.error is not None
    assert "did you mean `field_0_name`?" in outcome.error.message
    assert lag <= MOST


def test_of_a_schema_that_costs_too_much_the_names_of_its_fields_are_checked() -> None:
    fields = LARGE["patterns"]["properties"]
    check = make_bounded_parser(
        {"type": "object", "properties": fields, "required": ["field_1"], "additionalProperties": False}
    )
    assert check({"field_1": "anything"}) == {"field_1": "anything"}
    for wrong in ({}, {"field_1": 1, "other": 1}):
        with pytest.raises(InvalidInput):
            check(wrong)


@pytest.mark.parametrize(
    "schema",
    [
        with_fields(100, lambda each: {"type": "string", "pattern": f"^[a-z0-9_.{each}-]{{1,64}}$"}),
        {
            "$ref": "#/$defs/n",
            "$defs": {"n": {"properties": {"field_1": {"type": "string"}, "n": {"$ref": "#"}}}},
        },
        LARGE["fields"],
        LARGE["references"],
    ],
    ids=["patterns", "recursive", "many fields", "references"],
)
def test_usual_schemas_are_checked_whole(schema: Schema) -> None:
    check = make_bounded_parser({"type": "object", **schema})
    with pytest.raises(InvalidInput):
        check({"field_1": 5, "n": {"n": {}}})

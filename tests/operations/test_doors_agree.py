"""Search, list, schema and call agree about what a caller may see, and hidden operations change no answer."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.identity import Identity
from dragoman.operations.approval import MemoryApprovalStore
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context, Intermediary, ParentAgent
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.meta_tools import MetaTools
from dragoman.operations.operation import Operation
from dragoman.operations.permission.access_control import AccessControl
from dragoman.operations.permission.policy import Policy, Rule
from dragoman.operations.registry import Registry

NAMESPACES = ("mail", "mails", "Mailbox", "mail-2", "files")
NAMES = ("send", "Send_all", "send.all", "read", "delete/all")
OWNERS = (None, "ann", "bob")
PATTERNS = ("*", "mail", "MAIL.*", "mail*", "*.send*", "mail.send", "*.read", "files.*", "mail?.s*", "*all")
ids = st.tuples(st.sampled_from(NAMESPACES), st.sampled_from(NAMES))
decisions = st.sampled_from(["allow", "ask", "deny"])
rules = st.builds(
    Rule,
    decision=decisions,
    operations=st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=2).map(tuple),
    effects=st.lists(st.sampled_from(["read", "once"]), max_size=1).map(tuple),
    agents=st.lists(st.sampled_from(["helper", "h*", "*", "chief"]), max_size=1).map(tuple),
    identities=st.lists(st.sampled_from(["ann", "b*", "key:key_1", "key:*"]), max_size=1).map(tuple),
)
policies = st.builds(
    Policy,
    st.lists(rules, max_size=5),
    default=decisions,
    agents=st.fixed_dictionaries({"helper": decisions}),
)
people = st.sampled_from([Identity("ann", "key_1"), Identity("ann"), Identity("bob", "key_2")])
agents = st.sampled_from([None, "helper", "chief"])


async def do_nothing(_: Any, __: Context) -> str:
    return "done"


def made(id: tuple[str, str], effect: Any, owner: str | None, claimed: bool) -> Operation:
    return Operation.from_schema(
        do_nothing,
        {"type": "object"},
        namespace=id[0],
        name=id[1],
        description="Send or read mail.",
        effect=effect,
        owner=owner,
        private=owner is not None,
        effect_claimed=claimed,
        identity_aware=False,
    )


shelves = st.dictionaries(
    ids,
    st.tuples(st.sampled_from(["read", "once"]), st.sampled_from(OWNERS), st.booleans()),
    max_size=14,
).map(lambda rows: [made(id, *row) for id, row in rows.items()])


@st.composite
def callers(draw: st.DrawFn) -> Context:
    """A caller: a key, an agent, perhaps below another agent or behind a spoke."""
    identity = draw(people)
    return Context(
        identity=identity,
        agent=draw(agents),
        for_model=True,
        intermediaries=draw(st.sampled_from([(), (Intermediary(Identity(identity.owner), "helper"),)])),
        parent_agents=draw(st.one_of(st.just(()), st.builds(lambda p: (ParentAgent("chief", p),), policies))),
    )


def hub(operations: list[Operation], policy: Policy) -> tuple[MetaTools, Calls]:
    registry = Registry()
    for operation in operations:
        registry.add(operation)
    access = AccessControl(policy, MemoryApprovalStore(time.time), clock=time.time)
    calls = Calls(registry, MemoryLedger(), access_control=access)
    return MetaTools(registry, calls), calls


async def answer(meta: MetaTools, tool: str, input: dict[str, Any], context: Context) -> Any:
    """The result of a meta-tool, or its error; of a pending call only that it waits."""
    outcome = await meta.run(tool, input, context=context)
    return "pending" if outcome.status == "pending" else outcome.to_json()


def spellings(operation: Operation) -> tuple[str, ...]:
    id = operation.id
    return id, id.upper(), id.replace(".", "_", 1), f"{id}x"


@pytest.mark.promise("hidden-operations-stay-hidden")
@given(shelves, policies, callers())
async def test_what_is_shown_can_be_called_and_what_is_hidden_is_as_if_it_were_not_there(
    shelf: list[Operation], policy: Policy, context: Context
) -> None:
    meta, calls = hub(shelf, policy)
    seen = {each.id for each in shelf if calls.is_visible(each, context)}
    bare, bare_calls = hub([each for each in shelf if each.id in seen], policy)
    listed = await answer(meta, "hub.list", {}, context)
    assert {each["tool"] for each in listed["result"]["tools"]} == seen
    for q in ("mail", "send all", *(each.id for each in shelf)):
        found = await answer(meta, "hub.search", {"q": q}, context)
        assert {each["tool"] for each in found["result"]["tools"]} <= seen
    requests: list[tuple[str, dict[str, Any]]] = [("hub.list", {})]
    requests += [("hub.list", {"namespace": each}) for each in NAMESPACES]
    requests += [("hub.schema", {"tool": name}) for each in shelf for name in spellings(each)]
    requests += [("hub.call", {"calls": [{"tool": name}]}) for each in shelf for name in spellings(each)]
    for tool, input in requests:
        with pytest.MonkeyPatch.context() as patch:  # so that a few operations are many
            patch.setattr("dragoman.operations.registry.MAX_COMPARED", 4)
            whole = await answer(meta, tool, input, context)
            assert whole == await answer(bare, tool, input, context), (tool, input)
        if tool == "hub.call" and input["calls"][0]["tool"] in seen:
            assert whole == "pending" or whole["result"][0]["success"]
    await calls.close()
    await bare_calls.close()

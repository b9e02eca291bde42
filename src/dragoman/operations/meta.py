"""The four meta-tools: how a model finds operations and calls them. Their bytes never change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded, BadRequest, CallError, NotFound
from dragoman.operations.arguments.schema import Parse, checker
from dragoman.operations.batch import Bundle, Entry, read_batch
from dragoman.operations.call import Calls
from dragoman.operations.cleaning import clean
from dragoman.operations.context import Context, Report
from dragoman.operations.execution import Review
from dragoman.operations.operation import DESCRIPTION_LIMIT, Effect, Operation, Run
from dragoman.operations.outcome import CallFailure, Outcome, failure_of
from dragoman.operations.permission.guard import refused
from dragoman.operations.registry import RESERVED, Registry
from dragoman.operations.search.search import Search, count
from dragoman.operations.search.summary import summarise
from dragoman.request import Tool

LIST_BUDGET = 8_000  # bytes of the operations in one list

LIST = Tool(
    "hub_list",
    "List the operations of this hub: how many there are in which namespace, and a one-line summary of each,"
    " as far as there is room. Pass a namespace to list only that. To look for something, use hub_search.",
    {
        "type": "object",
        "properties": {
            "namespace": {"type": "string", "description": "List this namespace only."},
        },
        "additionalProperties": False,
    },
)
SEARCH = Tool(
    "hub_search",
    'Find operations by what they do. Write q as verb + object + service, like "send message slack" or'
    ' "convert currency"; the name of an operation, or its beginning, finds it too. Gives the best matches'
    " with a summary and a signature (`?` marks what is optional), how many more fit, and in which"
    " namespaces. Narrow it by namespace; a namespace without q lists it. If nothing fits, use other words.",
    {
        "type": "object",
        "properties": {
            "q": {"type": "string", "description": "What to find: verb + object + service."},
            "namespace": {"type": "string", "description": "Search this namespace only."},
        },
        "additionalProperties": False,
    },
)
SCHEMA = Tool(
    "hub_schema",
    "Get what an operation takes and gives, as JSON Schemas, with its full description and its effect:"
    " `read` changes nothing, `idempotent` may be repeated, `once` acts again each time. Get it before you"
    " call an operation for the first time.",
    {
        "type": "object",
        "properties": {
            "tool": {"type": "string", "description": "The operation's name, as hub_search gives it."},
        },
        "required": ["tool"],
        "additionalProperties": False,
    },
)
CALL = Tool(
    "hub_call",
    "Call operations. Find them with hub_search, and get the schema of each with hub_schema before you call"
    " it for the first time: do not guess names or inputs. The calls of one batch run at the same time, so"
    " let none need another's result. Gives one entry for each call, in order: {success: true, result} or"
    " {success: false, error}; an error says what to mend, and brings the schema when the input was wrong.",
    {
        "type": "object",
        "properties": {
            "calls": {
                "type": "array",
                "minItems": 1,
                "maxItems": 32,
                "items": {
                    "type": "object",
                    "properties": {
                        "tool": {"type": "string", "description": "The operation's name."},
                        "input": {"type": "object", "description": "What it takes, as its schema says."},
                    },
                    "required": ["tool"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["calls"],
        "additionalProperties": False,
    },
)
META_TOOLS: tuple[Tool, ...] = (LIST, SEARCH, SCHEMA, CALL)
CANONICAL = {tool.name.replace("_", ".", 1): tool for tool in META_TOOLS}


def meta_name(name: str) -> str | None:
    """`hub.call` for `hub.call` and `hub_call`, and so for all four; None for any other name."""
    dotted = name.replace("_", ".", 1)
    return dotted if dotted in CANONICAL and name in (dotted, CANONICAL[dotted].name) else None


class Meta:
    """Runs the meta-tools over a registry. Each is a call in the tree, with what it calls below it."""

    def __init__(self, registry: Registry, calls: Calls, *, search: Search | None = None) -> None:
        self._registry = registry
        self._calls = calls
        self._search = search or Search(registry)
        self._operations = {
            "hub.list": made(LIST, self._list),
            "hub.search": made(SEARCH, self._find),
            "hub.schema": made(SCHEMA, self._describe),
            "hub.call": made(CALL, self._call, parse=read_batch, effect="once", resumes=True),
        }

    async def run(
        self, name: str, input: Mapping[str, Any], *, context: Context, on_progress: Report | None = None
    ) -> Outcome:
        """What a meta-tool says; `name` in either spelling. NotFound for a name that is none of them."""
        canonical = meta_name(name)
        if canonical is None:
            raise NotFound(f"no meta-tool {name!r}", hint=f"there are {', '.join(CANONICAL)}")
        operation = self._operations[canonical]
        return await self._calls.call(operation, input, context=context, on_progress=on_progress)

    async def _list(self, input: Mapping[str, Any], context: Context) -> dict[str, Any]:
        namespace = input.get("namespace")
        operations = self.visible(context, namespace)
        if namespace is not None and not operations:
            spaces = count(self.visible(context))
            raise NotFound(f"no namespace {namespace!r}", hint=f"there are {', '.join(spaces) or 'none'}")
        tools: list[dict[str, str]] = []
        left = LIST_BUDGET
        for operation in operations:
            said = {"tool": operation.id, "summary": summarise(operation)}
            left -= len(msgspec.json.encode(said))
            if left < 0:
                break
            tools.append(said)
        more = len(operations) - len(tools)
        hint = {"hint": f"{more} more: pass a namespace, or find them with hub_search."} if more else {}
        return {"namespaces": count(operations), "tools": tools, "more": more, **hint}

    def visible(self, context: Context, namespace: str | None = None) -> Sequence[Operation]:
        """The operations that the caller may call; by id."""
        return [each for each in self._registry.list(namespace) if self._calls.is_visible(each, context)]

    async def _find(self, input: Mapping[str, Any], context: Context) -> dict[str, Any]:
        answer = self._search.find(
            input.get("q", ""),
            namespace=input.get("namespace"),
            allow=lambda operation: self._calls.is_visible(operation, context),
        )
        return answer.to_json()

    async def _describe(self, input: Mapping[str, Any], context: Context) -> dict[str, Any]:
        await self._calls.arrived([input["tool"]], context)
        operation = self._calls.find(input["tool"], context)
        return {
            "tool": operation.id,
            "description": clean(operation.description, DESCRIPTION_LIMIT),
            "effect": operation.effect,
            "inputSchema": operation.input_schema,
            "outputSchema": operation.output_schema,
        }

    async def _call(self, entries: tuple[Entry, ...], context: Context) -> list[dict[str, Any]]:
        """Call them all at once; or none, as long as somebody has to approve one of them.

        Where one has to wait in the midst of its work, the others end first, and it goes on by itself later.
        """
        await self._calls.arrived([entry.tool for entry in entries if not entry.failure], context)
        inside = [context for _ in entries]
        if context.state is None:
            inside = await self._reviewed(entries, context)
        bundle = Bundle.of(entries, context)
        if len(entries) == 1:  # most are, and it saves a task
            await self._call_one(entries[0], bundle.inside(inside[0], 0), bundle=bundle, at=0)
            return bundle.answer()
        async with asyncio.TaskGroup() as group:
            for at in bundle.left():
                own = bundle.inside(inside[at], at)
                group.create_task(self._call_one(entries[at], own, bundle=bundle, at=at))
        return bundle.answer()

    async def _reviewed(self, entries: tuple[Entry, ...], context: Context) -> list[Context]:
        """The context of each call of a batch. ApprovalNeeded as long as somebody has to approve one."""
        reviews = [await self._review(entry, context) for entry in entries]
        if items := [review.item for review in reviews if review.item is not None]:
            if len(items) > 1 and any(item.question is not None for item in items):
                raise CallError("a question is asked by itself", hint="call the others in another batch")
            names = ", ".join(dict.fromkeys(item.operation for item in items))
            raise ApprovalNeeded(f"{names}: somebody has to approve this first", items=items)
        return [context if not each.ruling else replace(context, ruling=each.ruling) for each in reviews]

    async def _review(self, entry: Entry, context: Context) -> Review:
        """What stands in the way of a call of a batch."""
        if entry.failure is not None or refuse_meta(entry.tool) is not None:
            return Review()
        return await self._calls.review(entry.tool, entry.input, context=context)

    async def _call_one(self, entry: Entry, context: Context, *, bundle: Bundle, at: int) -> None:
        failure = entry.failure or refuse_meta(entry.tool)
        if failure is not None:
            return bundle.done(at, {"success": False, "error": failure.to_json()})
        grant = context.grant
        if grant is not None and grant.call_id and not grant.approved and grant.state is None:
            await self._calls.consent.decline(grant.call_id, grant.said)
            return bundle.done(at, {"success": False, "error": refused(grant.said).to_json()})
        outcome = await self._calls.call(
            entry.tool, entry.input, context=context, on_progress=lambda value: bundle.note(at, value)
        )
        if outcome.waiting is not None:
            return bundle.wait(at, outcome.waiting)
        notes = [*entry.notes, *outcome.notes]
        said = outcome.to_json()
        return bundle.done(at, {**said, "notes": notes} if notes else said)


def refuse_meta(tool: str) -> CallFailure | None:
    """The failure of calling a meta-tool through `hub.call`; None for anything else."""
    if meta_name(tool) is None:
        return None
    wire = CANONICAL[meta_name(tool) or ""].name
    return failure_of(
        BadRequest(f"{tool} cannot be called through hub_call", hint=f"use the tool {wire} itself")
    )


def made(
    tool: Tool, run: Run, *, parse: Parse | None = None, effect: Effect = "read", resumes: bool = False
) -> Operation:
    """A meta-tool as an operation."""
    return Operation(
        namespace=RESERVED,
        name=tool.name.removeprefix("hub_"),
        description=tool.description,
        input_schema=tool.input_schema,
        effect=effect,
        parse=parse or checker(tool.input_schema),
        run=run,
        resumes=resumes,
    )

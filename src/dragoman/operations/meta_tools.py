"""The four meta-tools by which a model finds and calls operations.

Their bytes never change, so that prompts stay cached however many operations there are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from dragoman.errors import ApprovalNeeded, BadRequest, CallError, NotFound
from dragoman.model_request import Tool
from dragoman.operations.arguments.validation import InputParser, make_late_parser
from dragoman.operations.batch import BatchEntry, RunningBatch, parse_batch
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.context import Context, ProgressCallback
from dragoman.operations.execution import CallReview
from dragoman.operations.operation import MAX_DESCRIPTION_LENGTH, Effect, Operation, OperationFunction
from dragoman.operations.outcome import CallFailure, CallOutcome, to_failure
from dragoman.operations.permission.access_control import denied_failure
from dragoman.operations.registry import MAX_ID_LENGTH, RESERVED_NAMESPACE, Registry
from dragoman.operations.sanitize import sanitize_text
from dragoman.operations.search.search import OperationSearch, SearchScore, count_by_namespace
from dragoman.operations.search.summary import summarise

MAX_LIST_BYTES = 8_000  # bytes of the operations in one list
CHECKED_AT_ONCE = 500  # operations that are checked before other tasks may run

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
META_TOOLS_BY_ID = {tool.name.replace("_", ".", 1): tool for tool in META_TOOLS}


def meta_tool_id(name: str) -> str | None:
    """Return `hub.call` for `hub.call` and `hub_call`, likewise for the others; None for any other name."""
    dotted = name.replace("_", ".", 1)
    return dotted if dotted in META_TOOLS_BY_ID and name in (dotted, META_TOOLS_BY_ID[dotted].name) else None


class MetaTools:
    """Runs the meta-tools over a registry. Each is a call in the tree, with the calls it makes below it."""

    def __init__(self, registry: Registry, calls: Calls, *, search: OperationSearch | None = None) -> None:
        self._registry = registry
        self._calls = calls
        self._search = search or OperationSearch(registry)
        self._operations = {
            "hub.list": make_operation(LIST, self._list_operations),
            "hub.search": make_operation(SEARCH, self._search_operations),
            "hub.schema": make_operation(SCHEMA, self._describe_operation),
            "hub.call": make_operation(
                CALL, self._call_batch, parse=parse_batch, effect="once", resumes=True
            ),
        }

    async def run(
        self,
        name: str,
        input: Mapping[str, Any],
        *,
        context: Context,
        on_progress: ProgressCallback | None = None,
    ) -> CallOutcome:
        """Run a meta-tool; `name` in either spelling. Raises NotFound for any other name."""
        canonical = meta_tool_id(name)
        if canonical is None:
            raise NotFound(
                f"There is no meta-tool {name!r}.", hint=f"The meta-tools are {', '.join(META_TOOLS_BY_ID)}"
            )
        operation = self._operations[canonical]
        return await self._calls.call(operation, input, context=context, on_progress=on_progress)

    async def _list_operations(self, input: Mapping[str, Any], context: Context) -> dict[str, Any]:
        namespace = input.get("namespace")
        operations = await self._collect_visible(context, namespace)
        if namespace is not None and not operations:
            namespaces = count_by_namespace(self.visible_operations(context))
            raise NotFound(
                f"There is no namespace {namespace[:MAX_ID_LENGTH]!r}.",
                hint=f"The namespaces are {', '.join(namespaces) or 'none'}.",
            )
        tools: list[dict[str, str]] = []
        bytes_left = MAX_LIST_BYTES
        for operation in operations:
            item = {"tool": operation.id, "summary": summarise(operation)}
            bytes_left -= len(msgspec.json.encode(item))
            if bytes_left < 0:
                break
            tools.append(item)
        more = len(operations) - len(tools)
        hint = {"hint": f"{more} more: pass a namespace, or find them with hub_search."} if more else {}
        return {"namespaces": count_by_namespace(operations), "tools": tools, "more": more, **hint}

    def visible_operations(
        self, context: Context, namespace: str | None = None, *, after: str = ""
    ) -> Iterator[Operation]:
        """Yield the operations that the caller may call, by id; with `after` those that follow this id."""
        for operation in self._registry.list(namespace, after=after):
            if self._calls.is_visible(operation, context):
                yield operation

    async def count_namespaces(self, context: Context) -> Mapping[str, int]:
        """Return how many operations of each namespace the caller may call, by name."""
        counts = Counter(operation.namespace for operation in await self._collect_visible(context))
        return dict(sorted(counts.items()))

    async def _collect_visible(self, context: Context, namespace: str | None = None) -> Sequence[Operation]:
        """Return the operations that the caller may call, by id.

        Other tasks run meanwhile: with patterns in rules, 10,000 operations take a third of a second.
        """
        visible: list[Operation] = []
        for number, operation in enumerate(self._registry.list(namespace), 1):
            if self._calls.is_visible(operation, context):
                visible.append(operation)
            if number % CHECKED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return visible

    async def find_operations(self, input: Mapping[str, str], context: Context) -> dict[str, Any] | None:
        """Return the result of `hub.search` without a call; None unless the policy allows the call."""
        verdict = self._calls.access_control.evaluate(self._operations["hub.search"], context)
        return await self._search_operations(input, context) if verdict.decision == "allow" else None

    async def _search_operations(self, input: Mapping[str, Any], context: Context) -> dict[str, Any]:
        q = input.get("q", "")
        await self._search.prepare(q)
        answer = self._search.search(
            q,
            namespace=input.get("namespace"),
            allow=lambda operation: self._calls.is_visible(operation, context),
            owner=context.identity.owner,
        )
        return answer.to_json()

    def search_scores(self, q: str, ids: Sequence[str], *, context: Context) -> Mapping[str, SearchScore]:
        """Return the scores of these operations in a search for `q`."""
        return self._search.score(q, ids, owner=context.identity.owner)

    async def _describe_operation(self, input: Mapping[str, Any], context: Context) -> dict[str, Any]:
        await self._calls.wait_for_operations([input["tool"]], context)
        operation = self._calls.get_operation(input["tool"], context)
        return {
            "tool": operation.id,
            "description": sanitize_text(operation.description, MAX_DESCRIPTION_LENGTH),
            "effect": operation.effect,
            "inputSchema": operation.input_schema,
            "outputSchema": operation.output_schema,
        }

    async def _call_batch(self, entries: tuple[BatchEntry, ...], context: Context) -> list[dict[str, Any]]:
        """Run all calls at once, or none while one of them needs approval.

        If a call is suspended while it runs, the batch waits for the others and resumes only that call later.
        """
        await self._calls.wait_for_operations([entry.tool for entry in entries if not entry.failure], context)
        contexts = [replace(context, call_key=str(index)) for index in range(len(entries))]
        if context.state is None:
            contexts = await self._review_batch(entries, contexts)
        batch = RunningBatch.start_or_resume(entries, context)
        if len(entries) == 1:  # the common case: saves a task
            await self._call_entry(entries[0], batch.call_context(contexts[0], 0), batch=batch, index=0)
            return batch.results()
        async with asyncio.TaskGroup() as group:
            for index in batch.pending_indexes():
                call_context = batch.call_context(contexts[index], index)
                group.create_task(self._call_entry(entries[index], call_context, batch=batch, index=index))
        return batch.results()

    async def _review_batch(
        self, entries: tuple[BatchEntry, ...], contexts: Sequence[Context]
    ) -> list[Context]:
        """Return the context of each call. Raises ApprovalNeeded while one needs approval."""
        reviews = [
            await self._review_entry(entry, context) for entry, context in zip(entries, contexts, strict=True)
        ]
        if items := [review.item for review in reviews if review.item is not None]:
            if len(items) > 1 and any(item.question is not None for item in items):
                raise CallError(
                    "A question must be the only call of its batch.",
                    hint="Make the other calls in another batch.",
                )
            names = ", ".join(dict.fromkeys(item.operation for item in items))
            raise ApprovalNeeded(f"{names}: needs approval first.", items=items)
        return [
            context if not review.hook_decision else replace(context, hook_decision=review.hook_decision)
            for context, review in zip(contexts, reviews, strict=True)
        ]

    async def _review_entry(self, entry: BatchEntry, context: Context) -> CallReview:
        """Return the review of one call of a batch."""
        if entry.failure is not None or meta_tool_failure(entry.tool) is not None:
            return CallReview()
        return await self._calls.review(entry.tool, entry.input, context=context)

    async def _call_entry(
        self, entry: BatchEntry, context: Context, *, batch: RunningBatch, index: int
    ) -> None:
        failure = entry.failure or meta_tool_failure(entry.tool)
        if failure is not None:
            return batch.finish(index, {"success": False, "error": failure.to_json()})
        grant = context.grant
        if grant is not None and grant.call_id and not grant.approved and grant.state is None:
            await self._calls.approval_flow.decline_call(grant.call_id, grant.text)
            return batch.finish(index, {"success": False, "error": denied_failure(grant.text).to_json()})
        outcome = await self._calls.call(
            entry.tool,
            entry.input,
            context=context,
            on_progress=lambda value: batch.report_progress(index, value),
        )
        if outcome.suspended_call is not None:
            return batch.suspend(index, outcome.suspended_call)
        notes = [*entry.notes, *outcome.notes]
        result = outcome.to_json()
        return batch.finish(index, {**result, "notes": notes} if notes else result)


def meta_tool_failure(tool: str) -> CallFailure | None:
    """Return the failure of calling a meta-tool through `hub.call`; None for any other name."""
    if meta_tool_id(tool) is None:
        return None
    tool_name = META_TOOLS_BY_ID[meta_tool_id(tool) or ""].name
    return to_failure(
        BadRequest(f"{tool} cannot be called through hub_call.", hint=f"Use the tool {tool_name} itself.")
    )


def make_operation(
    tool: Tool,
    run: OperationFunction,
    *,
    parse: InputParser | None = None,
    effect: Effect = "read",
    resumes: bool = False,
) -> Operation:
    """Return a meta-tool as an operation."""
    return Operation(
        namespace=RESERVED_NAMESPACE,
        name=tool.name.removeprefix("hub_"),
        description=tool.description,
        input_schema=tool.input_schema,
        effect=effect,
        parse=parse or make_late_parser(tool.input_schema),
        run=run,
        resumes=resumes,
    )

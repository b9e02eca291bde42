"""The operations `coord.*` of a dev spoke, with the names and fields of seed 000."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.cli.dev.coord_operations import Coordination, SpawnRequest, to_json
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation

NAMESPACE = "coord"
MAX_TASK = 50_000  # characters
SECONDS = 120.0

Json = Mapping[str, Any]


def text(description: str, *, limit: int = 200) -> Json:
    """Return the schema of a text."""
    return {"type": "string", "minLength": 1, "maxLength": limit, "description": description}


def schema(required: Sequence[str] = (), **properties: Json) -> Json:
    """Return the schema of an input."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


SESSION = text("The child session, as coord.spawn returned it.")
SPAWN = schema(
    ["task"],
    sessionId=text("The id of the child session that is made; a new one by default."),
    task=text("What the agent is to do, with all that it has to know.", limit=MAX_TASK),
    branch=text("The branch that is made for it; by default dragoman/ and the session's id."),
    base=text("The branch that it leaves and is merged into; by default the current one."),
    parentSessionId=text("The session that hears of its progress; by default the calling one."),
    model=text("The model of the agent, as the hub names it; by default that of the spoke."),
)
STATUS = schema(parentSessionId=text("Only the tasks of this session; all of yours by default."))
MESSAGE = schema(
    ["sessionId", "body"], sessionId=SESSION, body=text("The message to the agent.", limit=MAX_TASK)
)
DIFF = schema(["sessionId"], sessionId=SESSION)
MERGE = schema(
    ["sessionId"], sessionId=SESSION, message=text("The message of the merge's commit.", limit=5_000)
)
REMOVE = schema(
    ["sessionId"],
    sessionId=SESSION,
    discard={"type": "boolean", "description": "Remove it even if it has changes or unmerged commits."},
)


class CoordinationOperations:
    """`coord.spawn`, `status`, `message`, `diff`, `merge` and `remove`; each owner sees its own tasks."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def list(self) -> list[Operation]:
        """Return the operations."""
        return [
            Operation.from_schema(
                self._spawn,
                SPAWN,
                namespace=NAMESPACE,
                name="spawn",
                description="Spawn an agent on a task: makes a git worktree with a branch of its own, and a"
                " child session, in which the agent works at once. Returns before it is done: coord.status"
                " reports its progress, and the session gets its progress, git state and diff.",
                effect="idempotent",
                timeout=SECONDS,
            ),
            Operation.from_schema(
                self._status,
                STATUS,
                namespace=NAMESPACE,
                name="status",
                description="Show the tasks with their state (working, ready, failed, interrupted, merged,"
                " removed), branch, git state and the end of what their agent wrote.",
                effect="read",
                timeout=SECONDS,
            ),
            Operation.from_schema(
                self._message,
                MESSAGE,
                namespace=NAMESPACE,
                name="message",
                description="Send a message to the agent of a child session. It answers at once if it is"
                " idle or was interrupted, otherwise after its current answer.",
                effect="idempotent",
                timeout=SECONDS,
            ),
            Operation.from_schema(
                self._diff,
                DIFF,
                namespace=NAMESPACE,
                name="diff",
                description="Show what a task has changed since its branch was created, committed or not.",
                effect="read",
                timeout=SECONDS,
            ),
            *self._ending_operations(),
        ]

    def _ending_operations(self) -> Sequence[Operation]:
        return [
            Operation.from_schema(
                self._merge,
                MERGE,
                namespace=NAMESPACE,
                name="merge",
                description="Merge the branch of a task into its base, including uncommitted changes. A"
                " conflict changes nothing, and names the files.",
                timeout=SECONDS,
            ),
            Operation.from_schema(
                self._remove,
                REMOVE,
                namespace=NAMESPACE,
                name="remove",
                description="Remove the worktree of a task, and its branch if it is merged. What is discarded"
                " stays in git under the ref that is returned.",
                timeout=SECONDS,
            ),
        ]

    async def _spawn(self, input: Json, context: Context) -> Any:
        request = SpawnRequest(
            task=input["task"],
            session_id=input.get("sessionId"),
            branch=input.get("branch"),
            base=input.get("base"),
            parent_session_id=input.get("parentSessionId"),
            model=input.get("model"),
        )
        return to_json(await self._coordination.spawn(request, context))

    async def _status(self, input: Json, context: Context) -> Any:
        tasks = await self._coordination.status(input.get("parentSessionId"), context.identity.owner)
        return {"tasks": to_json(tasks)}

    async def _message(self, input: Json, context: Context) -> Any:
        task, begun = await self._coordination.message(input["sessionId"], input["body"], context=context)
        return {**to_json(task), "delivered": "begun" if begun else "queued"}

    async def _diff(self, input: Json, context: Context) -> Any:
        return to_json(await self._coordination.diff(input["sessionId"], context.identity.owner))

    async def _merge(self, input: Json, context: Context) -> Any:
        owner = context.identity.owner
        task, commit = await self._coordination.merge(input["sessionId"], owner, message=input.get("message"))
        return {**to_json(task), "commit": commit}

    async def _remove(self, input: Json, context: Context) -> Any:
        owner, discard = context.identity.owner, bool(input.get("discard"))
        task, saved = await self._coordination.remove(input["sessionId"], owner, discard=discard)
        return {**to_json(task), "savedAs": saved}

"""The A2A values that the hub sends: tasks, their status and artifacts, messages and parts.

They are ProtoJSON: camelCase, enums by name, nothing for what is not there. Source: wire notes on A2A,
sections B0 to B2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dragoman.messages import DataPart, FilePart, Message, Part, TextPart

TaskState = Literal[
    "TASK_STATE_SUBMITTED",
    "TASK_STATE_WORKING",
    "TASK_STATE_COMPLETED",
    "TASK_STATE_FAILED",
    "TASK_STATE_CANCELED",
    "TASK_STATE_INPUT_REQUIRED",
]
TASK_STATES: tuple[TaskState, ...] = get_args(TaskState)
Role = Literal["ROLE_USER", "ROLE_AGENT"]
TERMINAL_STATES: frozenset[TaskState] = frozenset(
    {"TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED"}
)
HUB_DATA = frozenset({"data-question", "data-context", "data-anthropic"})
"""Data parts that are the hub's own, and no results."""


class A2aStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base of all A2A values."""


class A2aPart(A2aStruct, frozen=True):
    """A part: one of `text`, `raw` (base64), `url` and `data`."""

    text: str | UnsetType = UNSET
    raw: str | UnsetType = UNSET
    url: str | UnsetType = UNSET
    data: Any = UNSET
    media_type: str = ""
    filename: str = ""


class A2aMessage(A2aStruct, frozen=True):
    """A message of the user or the agent."""

    message_id: str
    role: Role
    parts: tuple[A2aPart, ...]
    context_id: str = ""
    task_id: str = ""


class A2aArtifact(A2aStruct, frozen=True):
    """A result: a text, a file or data."""

    artifact_id: str
    parts: tuple[A2aPart, ...]
    name: str = ""


class A2aTaskStatus(A2aStruct, frozen=True):
    """The state of a task; of one that waits or has failed, what it waits for or why."""

    state: TaskState
    message: A2aMessage | UnsetType = UNSET
    timestamp: str = ""


class A2aTask(A2aStruct, frozen=True):
    """A task as a whole."""

    id: str
    context_id: str
    status: A2aTaskStatus
    artifacts: tuple[A2aArtifact, ...] = ()
    history: tuple[A2aMessage, ...] = ()
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def in_state(self, state: TaskState) -> A2aTask:
        """Return the task in another state."""
        return replace(self, status=replace(self.status, state=state))


class StatusUpdate(A2aStruct, frozen=True):
    """A task has changed its state."""

    task_id: str
    context_id: str
    status: A2aTaskStatus
    metadata: Mapping[str, Any] = msgspec.field(default_factory=dict)


class ArtifactUpdate(A2aStruct, frozen=True):
    """An artifact begins, or with `append` grows."""

    task_id: str
    context_id: str
    artifact: A2aArtifact
    append: bool = False
    last_chunk: bool = False


class StreamItem(A2aStruct, frozen=True):
    """One event of a stream, and the body of a push notification."""

    task: A2aTask | UnsetType = UNSET
    status_update: StatusUpdate | UnsetType = UNSET
    artifact_update: ArtifactUpdate | UnsetType = UNSET


def text_message(text: str, *, id: str, data: Any = UNSET) -> A2aMessage:
    """Return a message of the agent: a text, and data for programs."""
    parts = [A2aPart(text=text)] if data is UNSET else [A2aPart(text=text), A2aPart(data=data)]
    return A2aMessage(message_id=id, role="ROLE_AGENT", parts=tuple(parts))


def write_message(message: Message, *, context_id: str, task_id: str) -> A2aMessage:
    """Return a stored user message as A2A writes it."""
    parts = tuple(part for each in message.parts if (part := write_part(each)) is not None)
    return A2aMessage(
        message_id=message.id, role="ROLE_USER", parts=parts, context_id=context_id, task_id=task_id
    )


def write_part(part: Part) -> A2aPart | None:
    """Return a part as A2A writes it; None for what is not a text, a file or an app's data."""
    match part:
        case TextPart(text=text):
            return A2aPart(text=text)
        case FilePart(url=url, media_type=media_type, filename=filename):
            return file_part(url, media_type, filename=filename or "")
        case DataPart(type=kind, data=data) if kind not in HUB_DATA:
            return A2aPart(data=data)
        case _:
            return None


def file_part(url: str, media_type: str, *, filename: str = "") -> A2aPart:
    """Return a file by its bytes or its URL."""
    header, comma, encoded = url.partition(",")
    if comma and header.startswith("data:") and header.endswith(";base64"):
        return A2aPart(raw=encoded, media_type=media_type, filename=filename)
    return A2aPart(url=url, media_type=media_type, filename=filename)


def message_artifacts(parts: Sequence[Part]) -> tuple[A2aArtifact, ...]:
    """Return the results in an answer, by the ids that its stream gave them."""
    artifacts: list[A2aArtifact] = []
    counts = {"text": 0, "file": 0}
    for part in parts:
        written = write_part(part)
        if written is None:
            continue
        if isinstance(part, DataPart):
            id = data_artifact_id(part.name, part.id)
            artifacts.append(A2aArtifact(artifact_id=id, parts=(written,), name=part.name))
            continue
        kind = "text" if isinstance(part, TextPart) else "file"
        counts[kind] += 1
        artifacts.append(A2aArtifact(artifact_id=f"{kind}-{counts[kind]}", parts=(written,)))
    return tuple(artifacts)


def data_artifact_id(name: str, id: str | None) -> str:
    """Return the id of the artifact of a data part."""
    return f"data-{name}" if id is None else f"data-{name}-{id}"

"""Tool names that a server would refuse: they are sent under other names, and restored in its calls.

Servers accept letters, digits, `-` and `_`, up to a length; clients of other families use dots, slashes and
longer names. Names that fit are sent as they are, so nearly all requests need none of this.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from dragoman.events import Event, ToolInputAvailable, ToolInputError, ToolInputStart
from dragoman.messages import Message, Part, ToolPart
from dragoman.model_request import ModelRequest, NamedToolChoice, Tool
from dragoman.providers.adapter import Family
from dragoman.wire.tool_names import ANTHROPIC_LENGTH, OPENAI_LENGTH, fit_tool_name

LENGTHS: Mapping[Family, int] = {
    "openai": OPENAI_LENGTH,
    "responses": OPENAI_LENGTH,
    "anthropic": ANTHROPIC_LENGTH,
}
DIGEST_LENGTH = 8  # characters that distinguish names with the same beginning


class ToolNames:
    """The names under which some tools of one request are sent, by their own names."""

    def __init__(self, sent: Mapping[str, str]) -> None:
        self._sent = sent
        self._own = {name: own for own, name in sent.items()}

    @classmethod
    def of(cls, tools: Sequence[Tool], family: Family) -> ToolNames | None:
        """Return the names for a request to a server of this family; None if all can be sent as they are."""
        length = LENGTHS.get(family)
        if length is None:
            return None
        others = [
            tool.name
            for tool in tools
            if not (len(tool.name) <= length and tool.name.isascii() and tool.name.isidentifier())
            and fit_tool_name(tool.name, length) != tool.name
        ]
        if not others:
            return None
        taken = {tool.name for tool in tools} - set(others)
        sent: dict[str, str] = {}
        for name in dict.fromkeys(others):
            sent[name] = accepted_name(name, length, taken=taken)
            taken.add(sent[name])
        return cls(sent)

    def apply(self, request: ModelRequest) -> ModelRequest:
        """Return the request with the names that the server accepts."""
        choice = request.tool_choice
        if isinstance(choice, NamedToolChoice):
            choice = NamedToolChoice(self._sent.get(choice.name, choice.name))
        return replace(
            request,
            tools=tuple(replace(tool, name=self._sent.get(tool.name, tool.name)) for tool in request.tools),
            tool_choice=choice,
            messages=tuple(map(self._apply_to_message, request.messages)),
        )

    async def restore(
        self, batches: AsyncGenerator[Sequence[Event], None]
    ) -> AsyncGenerator[Sequence[Event], None]:
        """Yield the batches of the answer with the tools' own names."""
        async with aclosing(batches):
            async for batch in batches:
                yield [self._restore_event(event) for event in batch]

    def _apply_to_message(self, message: Message) -> Message:
        if not any(isinstance(part, ToolPart) and part.name in self._sent for part in message.parts):
            return message
        return replace(message, parts=tuple(map(self._apply_to_part, message.parts)))

    def _apply_to_part(self, part: Part) -> Part:
        if not isinstance(part, ToolPart) or part.name not in self._sent:
            return part
        return replace(part, type=f"tool-{self._sent[part.name]}")

    def _restore_event(self, event: Event) -> Event:
        if not isinstance(event, ToolInputStart | ToolInputAvailable | ToolInputError):
            return event
        own = self._own.get(event.tool_name)
        return event if own is None or event.provider_executed else replace(event, tool_name=own)


def accepted_name(name: str, length: int, *, taken: set[str]) -> str:
    """Return a name that a server accepts and that is not `taken`; it depends on nothing else."""
    fitting = fit_tool_name(name, length)
    if len(name) <= length and fitting not in taken:
        return fitting
    digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:DIGEST_LENGTH]
    return f"{fitting[: length - DIGEST_LENGTH - 1]}_{digest}"

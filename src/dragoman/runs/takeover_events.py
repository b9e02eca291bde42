"""The events for readers of a run that continues at another host, from the message as that host has it.

The other host continues from what is stored: that may be more than was sent, and less of the step that was
streaming. What it dropped is withdrawn with `reset-step`; the readers see one stream with one `start` and one
`finish`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dragoman import events as e
from dragoman.agent.run_end import close_step, is_empty_step
from dragoman.errors import Conflict
from dragoman.fold import Fold
from dragoman.messages import DataPart, Message, Part, ReasoningPart, TextPart, ToolPart
from dragoman.part_builders import BlockBuilder, PartBuilder, PartSlot, ToolCallBuilder
from dragoman.unfold import FoldPosition, current_position, events_since

NOT_RUN = "the hub stopped before this call began"


def transition_events(fold: Fold, message: Message) -> list[e.Event]:
    """Return the events that bring the readers of a fold to the message that another host continues from.

    Raises Conflict when the message differs in a step that is over: no event takes that back.
    """
    agreed = count_agreed(fold, message)
    changed = message.metadata is not None and message.metadata != fold.metadata
    metadata: list[e.Event] = [e.MessageMetadata(message.metadata)] if changed else []
    if agreed == len(fold.builders):
        return [*_missing_events(fold, message, start=agreed), *metadata]
    if fold.phase != "step" or agreed < fold.step_start - 1 or len(message.parts) < fold.step_start - 1:
        raise Conflict("the answer went on at another host from an earlier state")
    # Clients that know no `reset-step` keep what is dropped: it must be closed.
    dropped = [*close_step(fold, reason=NOT_RUN)[:-1], e.ResetStep()]
    return [*dropped, *_missing_events(fold, message, start=fold.step_start, unfinished=False), *metadata]


def count_agreed(fold: Fold, message: Message) -> int:
    """Return how many parts of a fold a message begins with; a part may have grown."""
    pairs = zip(fold.builders, message.parts, strict=False)
    shorter = min(len(fold.builders), len(message.parts))
    return next((at for at, pair in enumerate(pairs) if not _agrees(*pair)), shorter)


def _agrees(builder: PartBuilder, part: Part) -> bool:
    match builder:
        case BlockBuilder(kind=kind):
            if not isinstance(part, TextPart | ReasoningPart) or type(part) is not kind:
                return False
            return part.text.startswith(builder.text())
        case ToolCallBuilder():
            return isinstance(part, ToolPart) and part.tool_call_id == builder.current.tool_call_id
        case PartSlot(current=current):
            return type(current) is type(part)


def _missing_events(
    fold: Fold, message: Message, *, start: int, unfinished: bool = True
) -> Iterator[e.Event]:
    """Yield what a message has beyond the fold: of open parts, and the parts from `start` on."""
    goal = Fold(message)
    goal.phase = fold.phase
    calls = []
    for index, builder in fold.unfinished.items() if unfinished else ():
        if isinstance(builder, ToolCallBuilder):
            calls.append((index, (builder.progress()[0], -1)))
        else:
            yield from _growth_events(builder, message.parts[index])
    yield from events_since(
        goal,
        FoldPosition(
            start,
            tuple(calls),
            in_step=fold.phase == "step",
            metadata_version=goal.metadata_version,
            end_events=0,
            started=True,
        ),
    )


def _growth_events(builder: PartBuilder, part: Part) -> Iterator[e.Event]:
    """Yield what a block or a data part has in the message beyond the fold."""
    match builder, part:
        case BlockBuilder(id=name, length=length), TextPart(text=text) | ReasoningPart(text=text):
            is_text = isinstance(part, TextPart)
            if len(text) > length:
                yield e.TextDelta(name, text[length:]) if is_text else e.ReasoningDelta(name, text[length:])
            end = e.TextEnd if is_text else e.ReasoningEnd
            yield end(name, part.provider_metadata)
        case PartSlot(current=DataPart() as old), DataPart(type=kind, data=data, id=id) if old != part:
            yield e.Data(kind, data, id)


def covers(replayed: Fold, fold: Fold) -> bool:
    """Return whether a replay of the same run has reached what a fold has of it."""
    is_behind = replayed.phase == "step" and fold.phase != "step"
    if len(replayed.builders) < len(fold.builders) + is_behind:
        return False
    if any(index < len(fold.builders) and fold.is_final(index) for index in replayed.unfinished):
        return False
    pairs = ((replayed.builders[index], builder) for index, builder in fold.unfinished.items())
    return all(
        each.progress()[0] >= builder.progress()[0]
        and (not isinstance(builder, BlockBuilder) or each.progress() >= builder.progress())
        for each, builder in pairs
    )


def position_in(replayed: Fold, fold: Fold) -> FoldPosition:
    """Return how much of a replay, which `covers` a fold of the same run, the fold has."""
    position = current_position(fold)
    return position._replace(metadata_version=replayed.metadata_version)


class ContinuedEvents:
    """Turns the events of the host that continues into those that follow in the stream of its readers."""

    def __init__(self, fold: Fold, message: Message) -> None:
        """`fold` is at the message that the host continues from."""
        self._in_step = fold.phase == "step"
        self._is_step_open = is_empty_step(fold) and len(message.parts) < len(fold.builders)

    def translate(self, batch: Sequence[e.Event]) -> list[e.Event]:
        """Return a batch without a second `start`, and with the steps as the readers have them."""
        return [following for event in batch for following in self._translate(event)]

    def _translate(self, event: e.Event) -> Iterator[e.Event]:
        match event:
            case e.Start(message_metadata=metadata):
                if metadata is not None:
                    yield e.MessageMetadata(metadata)
                return
            case e.StartStep() if self._is_step_open:  # the readers have its start
                self._is_step_open = False
                return
            case e.StartStep() | e.ErrorEvent() | e.Abort() | e.Finish() if self._in_step:
                yield e.FinishStep()
                self._in_step = isinstance(event, e.StartStep)
            case e.StartStep():
                self._in_step = True
            case e.FinishStep():
                self._in_step = False
            case _:
                pass
        yield event

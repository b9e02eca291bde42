"""A run as a UI message stream, for the AI SDK's `useChat` in an application without a hub."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from dragoman import events as e
from dragoman.wire.ui.encoder import SdkVersion, UIStreamEncoder

if TYPE_CHECKING:
    from dragoman.agent.run import Run

SERVER_ONLY_METADATA = ("cost",)
UNREPORTED_ERROR = "The run failed, and its end could not be reported."


class UIStream:
    """The frames of a run, as bytes; `async for` reads them. `headers` are those of the response."""

    headers: Mapping[str, str] = UIStreamEncoder.headers

    def __init__(self, run: Run[Any], sdk: SdkVersion) -> None:
        self._run = run
        self._sdk = sdk

    async def __aiter__(self) -> AsyncIterator[bytes]:
        encoder = UIStreamEncoder(sdk=self._sdk)
        ended = False
        with self._run.waiters:  # also between two frames: a client that has gone is noticed there
            async for batch in self._run.batches():
                ended = isinstance(batch[-1], e.Finish)
                if frames := encoder.encode([without_costs(event) for event in batch]):
                    yield frames
            if not ended:
                yield encoder.encode([e.ErrorEvent(UNREPORTED_ERROR)])
            yield encoder.end()


def ui_stream(run: Run[Any], *, sdk: SdkVersion = 6) -> UIStream:
    """Return the run as a UI message stream of the AI SDK: `data:` frames from the start, `[DONE]` last.

    The frames follow the schemas of AI SDK 6 and 7, the strict one of 6.0.1 included; `sdk=7` adds what only
    version 7 accepts. They hold no names of provider keys and no costs: those are in `result`. Closing the
    stream early, as web servers do when the client has gone, aborts the run unless somebody else waits for it
    or it is detached.

        stream = ui_stream(agent.spawn(messages))
        return StreamingResponse(stream, headers=dict(stream.headers))
    """
    return UIStream(run, sdk)


def without_costs(event: e.Event) -> e.Event:
    """Return the event without what only the program may know."""
    if not isinstance(event, e.Start | e.Finish | e.MessageMetadata):
        return event
    metadata = event.message_metadata
    if not isinstance(metadata, Mapping) or not any(name in metadata for name in SERVER_ONLY_METADATA):
        return event
    visible = {name: value for name, value in metadata.items() if name not in SERVER_ONLY_METADATA}
    return replace(event, message_metadata=visible)

"""Ollama's /api/chat stream in: lines of JSON as they come from the socket to batches of events.

A finish is never invented: a stream without its `done` line is an error, however cleanly it ends.
Source: wire notes on providers, §7 and §10.4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import count

from dragoman.errors import ProviderError
from dragoman.events import Event
from dragoman.wire.ndjson import BOM, NdjsonSplitter
from dragoman.wire.ollama import event_builder as lines
from dragoman.wire.ollama.event_builder import OllamaChunk, OllamaEventBuilder
from dragoman.wire.sse import MAX_FRAME_BYTES


class OllamaDecoder:
    """Decodes one answer. Feed it every socket read, then close it.

    What comes before a failure is given out first: `failure` is set then, and the next call raises it.
    `done` is true once the `finish-step` is out; what follows is ignored. `provider` and `model` go into it,
    the latter when the stream does not name one. `new_id` makes ids for tool calls that come without one, or
    with one that is `taken`.
    """

    def __init__(
        self,
        *,
        provider: str | None = None,
        model: str | None = None,
        new_id: Callable[[], str] | None = None,
        used_ids: Collection[str] = (),
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        self.done = False
        self._splitter = NdjsonSplitter(limit=limit)
        self._builder = OllamaEventBuilder(
            provider=provider, model=model, new_id=new_id or _sequential_ids(), used_ids=used_ids
        )

    @property
    def failure(self) -> ProviderError | None:
        """Why the answer failed, if it did."""
        return self._builder.failure

    @property
    def heartbeat_count(self) -> int:
        """How many comments the server has sent: lines of JSON have none."""
        return 0

    def feed(self, raw: bytes) -> list[Event]:
        """The events in one read; ProviderError when the answer failed and all before it is given out."""
        if self._builder.failure is not None:
            raise self._builder.failure
        if self.done:
            return []
        self._decode_block(self._splitter.feed(raw))
        events = self._builder.take_events()
        if not events and self._builder.failure is not None:
            raise self._builder.failure
        return events

    def close(self) -> list[Event]:
        """The last events, at the end of the stream; ProviderError when it ended before it was done."""
        if self._builder.failure is None and not self.done:
            self._decode_block(self._splitter.close(), last=True)
            self._builder.end()
        if self._builder.failure is not None:
            raise self._builder.failure
        return self._builder.take_events()

    def decode_document(self, raw: bytes) -> list[Event]:
        """The events of an answer that came as one JSON document, or as a stream all the same."""
        raw = raw.removeprefix(BOM)
        try:
            self._add_chunks([lines.read_chunk(raw)])
        except ValueError as error:
            if b"\n" not in raw.strip():
                raise _invalid_json_error(raw, error) from None
            self._decode_block(raw)
        return self.close()

    def _decode_block(self, block: bytes, *, last: bool = False) -> None:
        """Take whole lines. The last one of a stream may be the stump of one."""
        if block:
            decoded = lines.decode_lines(block)
            self._add_chunks(self._decode_each(block, last=last) if decoded is None else decoded)
        if self._splitter.failure is not None and not self.done:
            error = self._splitter.failure
            self._builder.fail(ProviderError(error.message, category="api_error", hint=error.hint))

    def _decode_each(self, block: bytes, *, last: bool) -> Iterable[OllamaChunk]:
        """The lines one by one, when they are not all well-behaved."""
        for payload in block.split(b"\n"):
            bare = payload.strip()
            if not bare:
                continue
            try:
                yield lines.read_chunk(bare)
            except ValueError as error:
                if not (last and bare.startswith(b"{")):  # else it is cut off, and the answer with it
                    self._builder.fail(_invalid_json_error(bare, error))
                return

    def _add_chunks(self, decoded: Iterable[OllamaChunk]) -> None:
        try:
            for line in decoded:
                self._builder.add_chunk(line)
                self.done = self._builder.done
                if self.done or self._builder.failure is not None:
                    return
        except RecursionError:
            self._builder.fail(
                ProviderError("the provider sent JSON that is nested too deeply", category="api_error")
            )


def _sequential_ids() -> Callable[[], str]:
    """Ids for calls without one: unique within the answer, and the same every time it is decoded."""
    numbers = count(1)
    return lambda: f"call_{next(numbers)}"


def _invalid_json_error(payload: bytes, error: ValueError) -> ProviderError:
    shown = repr(payload[:80].decode(errors="replace"))
    return ProviderError(
        f"the provider sent what is no JSON ({error}): {shown}", category="api_error", transient=True
    )

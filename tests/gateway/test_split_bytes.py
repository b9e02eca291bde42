"""However the upstream's bytes are split, each client reads the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest

from tests.effort import rows
from tests.gateway.recordings import (
    ANTHROPIC,
    ANTHROPIC_BROKEN,
    OLLAMA,
    OPENAI,
    known_ids,
    known_names,
    said_by_anthropic,
    said_by_openai,
)
from tests.gateway.sdk_clients import Failed, Pair, chunks, events, final, heard, snapshot
from tests.gateway.upstream import LINES, SSE, Answer, Stage

BROKEN = {name: raw for name, (raw, _, _) in ANTHROPIC_BROKEN.items()}


def ways(raw: bytes, name: str, *, lines: bool) -> list[Answer]:
    """An answer in other pieces, framings and line ends, chosen by its name."""
    seed = zlib.crc32(name.encode())
    headers = LINES if lines else SSE
    plain = raw.replace(b"\r\n", b"\n")
    feeds = [plain, plain.replace(b"\n", b"\r\n")] + ([] if lines else [plain.replace(b"\n", b"\r")])
    framings = ["length", "end", "chunked"]
    return [
        Answer(body=feed, headers=headers, framing=framings[(seed + at) % 3], seed=seed + at)
        for at, feed in enumerate([*feeds, plain])
    ]


def check(stage: Stage, raw: bytes, name: str, *, hear: Callable[[], Any], lines: bool = False) -> None:
    """All ways give the same as the whole at once."""
    stage.upstream.play(Answer(body=raw.replace(b"\r\n", b"\n"), headers=LINES if lines else SSE))
    want = hear()
    for way in rows(ways(raw, name, lines=lines), quick=2):
        stage.upstream.play(way)
        assert hear() == want, way


@pytest.mark.parametrize("name", sorted(OPENAI))
def test_openais_client_reads_the_same_however_the_bytes_come(stage: Stage, chat: Pair, name: str) -> None:
    raw = OPENAI[name]
    check(stage, raw, name, hear=lambda: known_names(heard(chunks, chat.hub, "oai/m"), raw))


@pytest.mark.parametrize("name", sorted({**ANTHROPIC, **BROKEN}))
def test_anthropics_client_reads_the_same_however_the_bytes_come(
    stage: Stage, messages: Pair, name: str
) -> None:
    raw = {**ANTHROPIC, **BROKEN}[name]
    check(stage, raw, name, hear=lambda: heard(events, messages.hub, "ant/m"))


@pytest.mark.parametrize("name", sorted(OLLAMA))
def test_openais_client_reads_the_same_from_ollama(stage: Stage, chat: Pair, name: str) -> None:
    raw = OLLAMA[name]

    def hear() -> Any:
        report = heard(snapshot, chat.hub, "oll/m")
        return report if isinstance(report, Failed) else known_ids(said_by_openai(report), raw)

    check(stage, raw, name, hear=hear, lines=True)


@pytest.mark.parametrize("name", ["openai_calls", "deepseek", "halves", "loose_frames", "think_tags", "xai"])
def test_anthropics_client_reads_the_same_from_an_openai_compatible_server(
    stage: Stage, messages: Pair, name: str
) -> None:
    raw = OPENAI[name]

    def hear() -> Any:
        report = heard(final, messages.hub, "oai/m")
        return report if isinstance(report, Failed) else known_ids(said_by_anthropic(report), raw)

    check(stage, raw, name, hear=hear)


@pytest.mark.parametrize("name", ["calls", "search", "thinking", "gateway", "interleaved"])
def test_openais_client_reads_the_same_from_an_anthropic_server(stage: Stage, chat: Pair, name: str) -> None:
    raw = ANTHROPIC[name]

    def hear() -> Any:
        report = heard(snapshot, chat.hub, "ant/m")
        return report if isinstance(report, Failed) else known_ids(said_by_openai(report), raw)

    check(stage, raw, name, hear=hear)


def test_a_stream_that_is_cut_anywhere_is_never_taken_for_whole(
    stage: Stage, chat: Pair, messages: Pair
) -> None:
    """The connection ends cleanly after any frame before the last: an error each time, with all that came."""
    for pair, read, raw in (
        (chat, chunks, OPENAI["openai_calls"]),
        (messages, events, ANTHROPIC["calls"]),
    ):
        stage.upstream.play(Answer(body=raw))
        whole = heard(read, pair.hub, f"{pair.family}/m")
        frames = raw.rstrip().split(b"\n\n")
        lost = 0
        for count in range(1, len(frames)):
            stage.upstream.play(Answer(body=b"\n\n".join(frames[:count]) + b"\n\n", framing="end"))
            report = heard(read, pair.hub, f"{pair.family}/m")
            if isinstance(report, Failed):
                assert report.status == 502
            elif report != whole:
                assert isinstance(report[-1], Failed)
                assert report[:-1] == whole[: len(report) - 1]
                lost += 1
        assert lost > 3

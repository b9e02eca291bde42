"""A spoken answer: its transcript is text, and its sound a file, however it is cut."""

from __future__ import annotations

import base64

import pytest

from dragoman import events as e
from dragoman.model_request import ModelRequest
from dragoman.providers.openai import OpenAIAdapter
from dragoman.wire.openai.quirks import Quirks

from .openai_streams import chunk, decode, sse

WAV = b"RIFF\x24\x00\x00\x00WAVEfmt " + bytes(range(50))
PCM = bytes(range(50))
ADTS = b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(range(50))


def encoded(sound: bytes) -> str:
    return base64.b64encode(sound).decode()


@pytest.mark.parametrize(
    ("pieces", "media_type", "sound"),
    [
        ([encoded(WAV)], "audio/wav", WAV),
        ([encoded(WAV)[:20], encoded(WAV)[20:]], "audio/wav", WAV),  # one text that was cut
        ([encoded(PCM[:10]), encoded(PCM[10:20]), encoded(PCM[20:])], "audio/pcm", PCM),  # each by itself
        (["&", encoded(PCM)], "audio/pcm", PCM),
    ],
)
def test_a_sound_in_pieces_is_one_file(pieces: list[str], media_type: str, sound: bytes) -> None:
    deltas = [{"audio": {"id": "a", "transcript": "Hel"}}, *({"audio": {"data": piece}} for piece in pieces)]
    body = sse(*map(chunk, deltas), chunk({"audio": {"transcript": "lo"}}), chunk(finish="stop"))
    events = decode([body]).events
    (file,) = [event for event in events if isinstance(event, e.File)]
    head, _, data = file.url.partition(",")
    assert (head, file.media_type) == (f"data:{media_type};base64", media_type)
    assert base64.b64decode(data) == sound
    text = "".join(event.delta for event in events if isinstance(event, e.TextDelta))
    assert text == "Hello"


def test_a_sound_without_a_transcript_is_an_answer() -> None:
    answer = decode([sse(chunk({"audio": {"data": encoded(WAV)}}), chunk(finish="stop"))])
    assert any(isinstance(event, e.File) for event in answer.events)
    assert isinstance(answer.events[-1], e.FinishStep)


@pytest.mark.parametrize(
    ("format", "sound", "media_type"),
    [
        (None, ADTS, "audio/aac"),
        ("aac", ADTS, "audio/aac"),
        ("aac", PCM, "audio/aac"),  # frames without headers
        ("opus", PCM, "audio/opus"),
        ("mp3", WAV, "audio/wav"),
        ("pcm16", ADTS, "audio/pcm"),  # samples that look like something else
        ("unheard", PCM, "audio/pcm"),
        (None, PCM, "audio/pcm"),
    ],
)
def test_a_sound_that_does_not_tell_its_format_is_in_the_one_that_was_asked_for(
    format: str | None, sound: bytes, media_type: str
) -> None:
    options = {} if format is None else {"modalities": ["text", "audio"], "audio": {"format": format}}
    decoder = OpenAIAdapter("up", Quirks()).decoder(ModelRequest(model="m", messages=(), options=options))
    events = decoder.feed(sse(chunk({"audio": {"data": encoded(sound)}}), chunk(finish="stop")))
    (file,) = [event for event in events if isinstance(event, e.File)]
    assert file.media_type == media_type
    assert file.url.startswith(f"data:{media_type};base64,")

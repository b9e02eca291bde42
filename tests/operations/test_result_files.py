"""Bytes in results: files become content blocks where they are, other bytes base64."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import msgspec
import pydantic
import pytest

from dragoman.errors import CallError
from dragoman.operations import Context, Registry, operation
from dragoman.operations.artifact_overflow import ArtifactOverflow
from dragoman.operations.call_dispatcher import Calls
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import encode_result, to_jsonable
from dragoman.operations.results.artifact import MemoryArtifactStore
from dragoman.wire.files import detect_media_type
from dragoman.wire.multimodal_outputs import without_files

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image(data: bytes = PNG, media_type: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": base64_of(data), "mimeType": media_type}


FILES: dict[str, tuple[bytes, str]] = {
    "png": (PNG, "image/png"),
    "jpeg": (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "image/jpeg"),
    "jpeg with exif": (b"\xff\xd8\xff\xe1\0\x10Exif\0", "image/jpeg"),
    "gif 87": (b"GIF87a" + bytes(8), "image/gif"),
    "gif 89": (b"GIF89a" + bytes(8), "image/gif"),
    "webp": (b"RIFF\n\n\n\nWEBPVP8 ", "image/webp"),
    "wav": (b"RIFF\x24\0\0\0WAVEfmt ", "audio/wav"),
    "mp3 with tags": (b"ID3\x04\0\0\0\0\0#TSSE", "audio/mpeg"),
    **{f"mp3 {byte:x}": (bytes([0xFF, byte, 0x90, 0x64]), "audio/mpeg") for byte in b"\xf2\xf3\xfa\xfb"},
    "ogg": (b"OggS\0\x02\0\0\0\0", "audio/ogg"),
    "flac": (b"fLaC\0\0\0\x22", "audio/flac"),
    "flac, one block": (b"fLaC\x80\0\0\x22", "audio/flac"),
    "pdf": (b"%PDF-1.7\n%\xe2\xe3", "application/pdf"),
}
OTHERS = [
    *(b"", b"hello", b"\0\1\2", b"%PNG", b"\xff\xfe\0\0", b"RIFF....AVI "),
    *(b"ID3 is a tag", b"\xff\xd8", bytes(99)),
]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_the_bytes_of_a_file_are_its_content_block(name: str, kind: Any) -> None:
    data, media_type = FILES[name]
    main_type = media_type.partition("/")[0]
    block: dict[str, Any] = {"type": main_type, "data": base64_of(data), "mimeType": media_type}
    if main_type == "application":
        block = {"type": "resource", "resource": {"mimeType": media_type, "blob": base64_of(data)}}
    assert detect_media_type(data) == media_type
    assert to_jsonable(kind(data)) == {"content": [block]}
    if kind is not memoryview:
        assert to_jsonable({"a": [kind(data), 7]}) == {"a": [block, 7]}


@pytest.mark.parametrize("data", OTHERS)
def test_other_bytes_are_base64_text(data: bytes) -> None:
    assert to_jsonable(data) == base64_of(data)
    assert to_jsonable([PNG, data]) == [image(), base64_of(data)]


class Chart(msgspec.Struct):
    title: str
    data: bytes


@dataclasses.dataclass
class Sheet:
    charts: list[Chart]


class Report(pydantic.BaseModel):
    title: str
    picture: bytes


class Drawing:
    """Renders itself as Pillow's images do."""

    def __init__(self, rendered: Any) -> None:
        self.rendered = rendered

    def _repr_png_(self) -> Any:
        return self.rendered

    def save(self, path: str) -> None:
        raise AssertionError("an object that can be saved is not always an image")


PLACES: list[tuple[Any, Any]] = [
    ({"a": {1: PNG}}, {"a": {"1": image()}}),
    (("Here:", PNG), ["Here:", image()]),
    ({PNG}, [image()]),
    (Chart("Sales", PNG), {"title": "Sales", "data": image()}),
    (Sheet([Chart("Sales", PNG)]), {"charts": [{"title": "Sales", "data": image()}]}),
    (Report(title="Sales", picture=PNG), {"title": "Sales", "picture": image()}),
    (Report(title="Sales", picture=b"text"), {"title": "Sales", "picture": "text"}),
    (Drawing(PNG), {"content": [image()]}),
    (Drawing(base64_of(PNG)), {"content": [image()]}),
    ({"a": Drawing(PNG)}, {"a": image()}),
    (Drawing(None), None),
    ([Drawing(None), Drawing("?")], [None, None]),
    ({"a": PNG, "b": "half \ud83d"}, {"a": image(), "b": "half \ufffd"}),
    (base64_of(PNG), base64_of(PNG)),
    ({"already": base64_of(PNG)}, {"already": base64_of(PNG)}),
]


@pytest.mark.parametrize(("value", "result"), PLACES)
def test_a_file_becomes_a_block_wherever_it_is_in_a_result(value: Any, result: Any) -> None:
    assert to_jsonable(value) == result


def test_a_result_with_a_file_may_not_have_other_values_without_json_form() -> None:
    for value in ({"a": PNG, "b": object()}, {"a": PNG, "b": float("nan")}):
        with pytest.raises(CallError, match="cannot be encoded"):
            to_jsonable(value)


def test_bytes_of_structured_output_stay_base64() -> None:
    assert encode_result({"a": PNG}, files=False) == msgspec.json.encode({"a": base64_of(PNG)})


def test_the_schema_of_a_result_allows_blocks_in_the_place_of_bytes() -> None:
    @operation
    def draw() -> dict[str, bytes]:
        return {}

    (found,) = Registry(draw).list()
    assert found.output_schema is not None
    assert "content block" in str(found.output_schema)
    assert "binary" not in str(found.output_schema)


async def test_a_result_with_much_text_and_a_file_is_cut_but_keeps_the_file() -> None:
    @operation(effect="read")
    def report() -> dict[str, Any]:
        return {"chart": PNG, "rows": [f"row {number}" for number in range(9_000)]}

    store = MemoryArtifactStore()
    async with Calls(Registry(report), MemoryLedger(), overflow=ArtifactOverflow(store)) as calls:
        outcome = await calls.call("tools.report", {}, context=Context(for_model=True))
    result = outcome.unwrap()
    assert result["files"] == [image()]
    assert base64_of(PNG) not in result["head"] + result["tail"]
    assert "[a file of the type image/png, 32 bytes]" in str(without_files(result))


async def test_a_large_file_is_not_cut() -> None:
    @operation(effect="read")
    def draw() -> dict[str, Any]:
        return {"title": "Sales", "chart": PNG + bytes(300_000)}

    async with Calls(Registry(draw), MemoryLedger()) as calls:
        outcome = await calls.call("tools.draw", {}, context=Context(for_model=True))
    assert outcome.unwrap() == {"title": "Sales", "chart": image(PNG + bytes(300_000))}

"""Images and files are checked before they are sent."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from dragoman.agent.attachments import ContentPiece, file, image, tool_output, user_message
from dragoman.errors import BadRequest, TooLarge
from dragoman.messages import FilePart, TextPart, ToolPart
from dragoman.wire.multimodal_outputs import read_multimodal_output

PNG = b"\x89PNG\r\n\x1a\n" + bytes(24)
JPEG = b"\xff\xd8\xff\xe0" + bytes(24)
PDF = b"%PDF-1.7 ..."


def packed(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "image/png"),
        (JPEG, "image/jpeg"),
        (b"GIF89a" + bytes(8), "image/gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp"),
    ],
)
def test_an_image_is_known_by_its_bytes_however_it_comes(data: bytes, kind: str, tmp_path: Path) -> None:
    part = FilePart(kind, packed(kind, data))
    path = tmp_path / "picture.bin"
    path.write_bytes(data)
    assert image(data) == image(part.url) == image(data, media_type=kind) == part
    assert image(path) == image(str(path)) == FilePart(kind, part.url, "picture.bin")


@pytest.mark.promise("attachments-are-never-fetched")
def test_an_image_by_address_is_passed_on_and_never_fetched() -> None:
    assert image("https://a.example/cat.jpg?x=1") == FilePart("image/jpeg", "https://a.example/cat.jpg?x=1")
    assert image("http://127.0.0.1:9/cat").media_type == "image/png"


def test_how_closely_to_look_goes_along() -> None:
    assert image(PNG, detail="high").provider_metadata == {"openai": {"imageDetail": "high"}}
    assert image(PNG, detail="auto").provider_metadata is None


@pytest.mark.parity
@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (b"", {}, "is empty"),
        (b"GIF8", {}, "not an image that models accept"),
        (b"BM" + bytes(60), {}, "not an image that models accept"),
        (PDF, {}, "not an image that models accept"),
        (PNG, {"media_type": "image/jpeg"}, "is image/png, not image/jpeg"),
        (packed("image/gif", PNG), {}, "is image/png, not image/gif"),
        (PNG, {"detail": "huge"}, "auto, low or high"),
        ("data:image/png;base64,A", {}, "not valid base64"),
        ("data:image/png,xyz", {}, "must be data:<type>;base64"),
        ("/no/such/cat.png", {}, "there is no file '/no/such/cat.png'"),
        ("/", {}, "there is no file '/'"),
        ("cat\0.png", {}, "cannot be read|there is no file"),
        ("file:///etc/passwd", {}, "neither an http"),
        ("ftp://a.example/cat.png", {}, "neither an http"),
        ("gopher://a.example/", {}, "neither an http"),
        ("https://a.example/paper.pdf", {}, "is not an image"),
        ("https://a.example/cat", {"media_type": "text/html"}, "is not an image"),
    ],
)
def test_what_is_no_image_is_refused_in_clear_words(source: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says) as caught:
        image(source, **options)
    assert base64.b64encode(PNG).decode() not in caught.value.message


@pytest.mark.parametrize("attach", [image, file])
def test_what_is_too_large_is_refused_before_it_is_read(attach: Any, tmp_path: Path) -> None:
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    for source in (PNG, path, packed("image/png", PNG)):
        assert attach(source, largest=len(PNG)).media_type == "image/png"
        with pytest.raises(TooLarge, match="32 bytes; the limit is 31"):
            attach(source, largest=len(PNG) - 1)


def test_an_image_may_have_five_megabytes() -> None:
    with pytest.raises(TooLarge, match="the limit is 5000000"):
        image(PNG + bytes(5_000_000))


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("paper.pdf", PDF, "application/pdf"),
        ("paper", PDF, "application/pdf"),
        ("notes.txt", b"hello", "text/plain"),
        ("table.csv", b"a,b", "text/csv"),
        ("data.json", b"{}", "application/json"),
        ("code.ts", b"let x = 1", "text/plain"),
        ("LICENSE", "Straße".encode(), "text/plain"),
        ("sound.mp3", b"ID3\xff\0", "audio/mpeg"),
    ],
)
def test_a_file_is_known_by_its_bytes_or_else_by_its_name(
    name: str, data: bytes, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert file(path) == FilePart(kind, packed(kind, data), name)
    assert file(data, filename=name) == file(path)


def test_a_file_by_address_is_passed_on() -> None:
    url = "https://a.example/paper.pdf?v=2"
    assert file(url) == FilePart("application/pdf", url, "paper.pdf")
    assert file("https://a.example/x", media_type="text/plain").media_type == "text/plain"


@pytest.mark.parametrize(
    ("source", "options", "says"),
    [
        (b"\xff\xfe\x00", {}, "the type of the data"),
        (b"\xff\xfe\x00", {"media_type": "text/plain"}, "not UTF-8 text"),
        (b"hello", {"media_type": "application/pdf"}, "is not a PDF"),
        (b"hello", {"filename": "paper.pdf"}, "is not a PDF"),
        ("file:///etc/passwd", {}, "neither an http"),
    ],
)
def test_what_is_no_such_file_is_refused(source: Any, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        file(source, **options)


def test_a_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(BadRequest, match="'/proc/self/mem' cannot be read"):
        file(Path("/proc/self/mem"))  # nobody can, not even who may read everything


def test_texts_images_and_files_make_a_message_and_a_tools_output() -> None:
    pieces: list[ContentPiece] = ["Look:", image(PNG), image("https://a.example/b.png"), file(PDF)]
    message = user_message(*pieces, id="m1")
    assert (message.id, message.role) == ("m1", "user")
    assert message.parts == (TextPart("Look:"), *pieces[1:])
    call = ToolPart("tool-draw", "c", "output-available", input={}, output=tool_output(*pieces))
    assert list(read_multimodal_output(call) or ()) == list(message.parts)

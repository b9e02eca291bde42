"""The contents that the conformance suite's plain fixtures return."""

from __future__ import annotations

from typing import Any

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="


def text(reply: str) -> dict[str, Any]:
    return {"type": "text", "text": reply}


def resource(uri: str, kind: str, *, reply: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": reply}}


IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
CONTENTS: dict[str, list[dict[str, Any]]] = {
    "test_simple_text": [text("This is a simple text response for testing.")],
    "test_image_content": [IMAGE],
    "test_audio_content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}],
    "test_embedded_resource": [
        resource("test://embedded-resource", "text/plain", reply="This is an embedded resource content.")
    ],
    "test_multiple_content_types": [
        text("Multiple content types test:"),
        IMAGE,
        resource("test://mixed-content-resource", "application/json", reply='{"test":"data","value":123}'),
    ],
}

"""Operations that return the bytes of images, sounds and documents, in every place of a result."""

import base64

from dragoman import operation

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
)
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(28)
PDF = b"%PDF-1.7\n" + b"1 0 obj\n" * 40


@operation("art", effect="read")
async def draw() -> bytes:
    """Draw a picture."""
    return PNG


@operation("art", effect="read")
async def report() -> dict[str, object]:
    """Report the sales, with a chart."""
    return {"title": "Sales", "charts": [{"month": 1, "chart": PNG}], "total": 7}


@operation("art", effect="read")
async def large() -> dict[str, object]:
    """Report many rows, with a chart."""
    return {"chart": PNG, "rows": [f"row {number}" for number in range(5_000)]}


@operation("art", effect="read")
async def sound() -> bytes:
    """Record a sound."""
    return WAV


@operation("art", effect="read")
async def paper() -> bytes:
    """Print a document."""
    return PDF

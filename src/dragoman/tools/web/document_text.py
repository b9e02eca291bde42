"""The text of documents whose parsers are not safe in the hub's process: main content of pages, and PDF."""

from __future__ import annotations

import asyncio
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import msgspec

from dragoman.errors import CallError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.processes.program import run_program
from dragoman.processes.resource_limits import with_limits

EXTRACTOR = Path(__file__).with_name("extractor_program.py")
PACKAGES = {"html": "trafilatura", "pdf": "pypdf"}
MAX_TEXT = 2_000_000  # characters
SECONDS = 30.0
LIMITS = {"RLIMIT_DATA": 600_000_000, "RLIMIT_CPU": 10, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0}
MAX_CONCURRENT = 2
INHERITED_VARIABLES = ("LD_LIBRARY_PATH",)  # no others: the hub's variables hold secrets

DocumentKind = Literal["html", "pdf"]


class DocumentText(msgspec.Struct, frozen=True):
    """The text of a document; None for a page without main content."""

    title: str | None
    text: str | None


class DocumentReader:
    """Reads documents, each in a process of its own with limits, a few at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def read(self, kind: DocumentKind, body: bytes) -> DocumentText:
        """Return the text of a document. Raises CallError if it cannot be read."""
        check_installed(kind)
        async with self._slots:
            try:
                async with asyncio.timeout(SECONDS):
                    return msgspec.json.decode(await run_extractor(kind, body), type=DocumentText)
            except (TimeoutError, *DECODE_ERRORS):
                raise CallError(
                    f"The {kind.upper()} document cannot be read: it is damaged, or too large to be parsed.",
                    hint="Look for the same content as plain text or HTML.",
                ) from None


def check_installed(kind: DocumentKind) -> None:
    """Raise CallError if the package for a kind of document is not installed."""
    if find_spec(PACKAGES[kind]) is None:
        raise CallError(
            f"{PACKAGES[kind]} is not installed, which reads {kind.upper()} documents.",
            hint="The hub's operator can install it: pip install 'dragoman[web]'.",
        )


async def run_extractor(kind: DocumentKind, body: bytes) -> bytes:
    """Return the JSON that the extractor prints; incomplete if it was ended by a limit."""
    arguments = [sys.executable, "-I", str(EXTRACTOR), kind, str(MAX_TEXT)]
    environ = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return await run_program(with_limits(arguments, LIMITS), input=body, environ=environ)

"""The source of a plugin, read without running it: what it offers, and what it must not contain.

The check tells an author early what will not work. The protection is the sandbox.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman.errors import BadRequest, ConfigError
from dragoman.json_decoding import DECODE_ERRORS
from dragoman.operations.arguments.validation import make_bounded_parser
from dragoman.operations.operation import Effect
from dragoman.processes.program import run_program
from dragoman.processes.resource_limits import with_limits

MAX_SOURCE = 100_000  # characters
MAX_TESTS = 50
NAME_PATTERN = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
MAX_NAME = 63
RESERVED_NAMES = frozenset({"read", "write", "edit", "glob", "grep", "bash"})
READER = Path(__file__).with_name("source_program.py")
READER_SECONDS = 30.0
READER_LIMITS = {"RLIMIT_DATA": 300_000_000, "RLIMIT_CPU": 10, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0}


class SourceReport(msgspec.Struct, frozen=True):
    """The result of reading a source: texts about what is wrong with it, and its constants."""

    problems: tuple[str, ...]
    constants: Mapping[str, Any]


class PluginTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An input, and what `run` has to return for it."""

    input: dict[str, Any]
    output: Any


class PluginSource(msgspec.Struct, frozen=True, kw_only=True):
    """What a plugin offers: its description, the JSON Schema of its input, its effect, its tests."""

    name: str
    text: str
    description: str
    schema: dict[str, Any]
    effect: Effect = "once"
    tests: tuple[PluginTest, ...] = ()

    @property
    def hash(self) -> str:
        """The SHA-256 of the source."""
        return hash_of(self.text)


def hash_of(text: str) -> str:
    """Return the SHA-256 of a source."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


async def parse_plugin(name: str, text: str) -> PluginSource:
    """Return what a source offers. Raises BadRequest with every problem, by line."""
    check_name(name)
    if len(text) > MAX_SOURCE:
        raise BadRequest(f"The source has {len(text)} characters; the limit is {MAX_SOURCE}.", field="source")
    report = await read_source(text)
    if report.problems:
        raise BadRequest("; ".join(report.problems), field="source", hint=CONTRACT)
    return build_source(name, text, constants=report.constants)


async def read_source(text: str) -> SourceReport:
    """Parse a source in a process of its own. Raises BadRequest if that fails."""
    arguments = with_limits([sys.executable, "-I", "-S", str(READER)], READER_LIMITS)
    try:
        async with asyncio.timeout(READER_SECONDS):
            output = await run_program(arguments, input=text.encode(errors="surrogatepass"))
        return msgspec.json.decode(output, type=SourceReport)
    except (TimeoutError, *DECODE_ERRORS):
        raise BadRequest(
            "The source cannot be parsed: it is nested too deeply, or has too many parts.", field="source"
        ) from None


CONTRACT = (
    "A plugin defines DESCRIPTION, a text; INPUT, a JSON Schema; TESTS, a list of "
    "{'input': ..., 'output': ...}; optionally EFFECT, 'read', 'idempotent' or 'once'; and `def run(input)`, "
    "which returns JSON. It imports pure modules of the standard library only."
)


def check_name(name: str) -> None:
    """Raise BadRequest for a name that a plugin cannot have."""
    if name in RESERVED_NAMES:
        raise BadRequest(f"{name!r} is the name of a built-in tool.", field="name", hint="Choose another.")
    if not NAME_PATTERN.fullmatch(name) or len(name) > MAX_NAME:
        raise BadRequest(f"{name[:100]!r} is not a name in snake_case.", field="name")


def build_source(name: str, text: str, *, constants: Mapping[str, Any]) -> PluginSource:
    """Return the source with its constants, which are converted strictly. Raises BadRequest."""
    fields = {
        "name": name,
        "text": text,
        "description": constants.get("DESCRIPTION"),
        "schema": constants.get("INPUT"),
        "effect": constants.get("EFFECT", "once"),
        "tests": constants.get("TESTS"),
    }
    try:
        source = msgspec.convert(fields, PluginSource)
        parse = make_bounded_parser(source.schema)
        for test in source.tests:
            parse(test.input)
    except (msgspec.ValidationError, ConfigError, BadRequest) as error:
        raise BadRequest(
            f"A constant of the plugin is not valid: {error}", field="source", hint=CONTRACT
        ) from None
    if not 0 < len(source.tests) <= MAX_TESTS:
        raise BadRequest(f"A plugin has 1 to {MAX_TESTS} tests, not {len(source.tests)}.", field="source")
    return source

"""Content search: the lines of files that match a regular expression, within limits.

This process opens the files, each below its folder and without following links, and the searching process
gets descriptors, never paths. ripgrep takes time in proportion to the text whatever the expression is.
Python's engine may not, so its process is ended at the deadline.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, cast

import msgspec

from dragoman.errors import BadRequest, Forbidden, NotFound
from dragoman.json_decoding import parse_digits
from dragoman.tools.files.folder_search import MAX_FILE_BYTES, MAX_SECONDS, FileSearch, looks_like_text
from dragoman.tools.files.roots import Roots

PYTHON_PROGRAM = Path(__file__).with_name("grep_program.py")
BATCH = 100  # files of one process: each needs an open descriptor
MAX_LINE = 400  # characters of a line that are returned
MAX_LINES_PER_FILE = 50
MAX_OUTPUT = 4_000_000  # bytes of one process
SYNTAX_ERROR = 2  # ripgrep's exit code
RIPGREP_OPTIONS = (
    "--no-config --no-heading --with-filename --null --line-number --color=never --text --encoding=none "
    "--threads=1 --max-columns-preview"
)
UNSHARED_SYNTAX = re.compile(
    r"\(\?(?!:)|\\[^\W_dDwWsSbBnrtfv]|\\_|(?<!\\)\{(?!\d+(?:,\d*)?\})|[*+?}]\+|\[\[|[\x00\n]"
)
"""Syntax that only one of the engines has, or that they read differently."""


class LineFound(msgspec.Struct, frozen=True):
    """A matching line of a file, its number from 1."""

    path: str
    line: int
    text: str


class ContentSearch:
    """One search for an expression. `complete` says whether everything was searched."""

    def __init__(
        self, roots: Roots, expression: str, *, ignore_case: bool = False, ripgrep: str | None = None
    ) -> None:
        check_expression(expression)
        self.complete = True
        self._roots = roots
        self._expression = expression
        self._ignore_case = ignore_case
        self._ripgrep = ripgrep
        self._deadline = time.monotonic() + MAX_SECONDS

    def find(self, files: FileSearch, paths: Iterable[str]) -> Iterator[LineFound]:
        """Yield the matching lines of text files, file by file in the order of the paths."""
        remaining = iter(paths)
        while batch := list(islice(remaining, BATCH)):
            if time.monotonic() >= self._deadline:
                self.complete = False
                return
            yield from self._search_batch(batch)
        self.complete = self.complete and files.complete

    def _search_batch(self, paths: Sequence[str]) -> Iterator[LineFound]:
        with ExitStack() as stack:
            opened = ((self._open(path, stack), path) for path in paths)
            names = {f"/dev/fd/{file}".encode(): path for file, path in opened if file is not None}
            output = self._run([name.decode() for name in names]) if names else b""
        for line in output.split(b"\n"):
            name, separator, rest = line.partition(b"\0")
            digits, _, text = rest.partition(b":")
            number = parse_digits(digits.decode("latin-1"))
            if separator and name in names and number is not None:
                yield LineFound(names[name], number, text.decode(errors="replace").rstrip("\r")[:MAX_LINE])

    def _open(self, path: str, stack: ExitStack) -> int | None:
        """Open a file until `stack` ends; None if it is not one to be searched."""
        try:
            descriptor = stack.enter_context(self._roots.open(path))
        except (Forbidden, NotFound, OSError):
            return None
        return descriptor if self._is_searched(descriptor) else None

    def _is_searched(self, descriptor: int) -> bool:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or not looks_like_text(os.pread(descriptor, 8_192, 0)):
            return False
        self.complete = self.complete and status.st_size <= MAX_FILE_BYTES
        return status.st_size <= MAX_FILE_BYTES

    def _run(self, files: Sequence[str]) -> bytes:
        """Return what the searching process prints before the deadline. `files` are paths of descriptors."""
        descriptors = [int(name.rpartition("/")[2]) for name in files]
        with subprocess.Popen(  # noqa: S603 - ripgrep, or our own program; the expression is one argument
            [*self._command(), *files],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={},
            cwd="/",
        ) as process:
            timer = threading.Timer(max(0.1, self._deadline - time.monotonic()), process.kill)
            timer.start()
            try:
                output = cast(IO[bytes], process.stdout).read(MAX_OUTPUT)
                if len(output) >= MAX_OUTPUT:
                    process.kill()
                else:
                    process.wait()
            finally:
                timer.cancel()
        if process.returncode == SYNTAX_ERROR:
            raise expression_error(self._expression)
        self.complete = self.complete and process.returncode in (0, 1)
        return output

    def _command(self) -> list[str]:
        case = "-i" if self._ignore_case else "-s"
        if self._ripgrep is None:
            program = [sys.executable, "-I", "-S", str(PYTHON_PROGRAM)]
            return [*program, case, str(MAX_LINES_PER_FILE), self._expression]
        options = f"{RIPGREP_OPTIONS} --max-count={MAX_LINES_PER_FILE} --max-columns={MAX_LINE}"
        return [self._ripgrep, *options.split(), case, "-e", self._expression, "--"]


def check_expression(text: str) -> None:
    """Raise BadRequest unless both engines accept an expression and read it alike."""
    if UNSHARED_SYNTAX.search(text):
        raise expression_error(text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(text)
    except (re.error, FutureWarning, DeprecationWarning, OverflowError, RecursionError):
        raise expression_error(text) from None


def expression_error(text: str) -> BadRequest:
    return BadRequest(
        f"{text[:200]!r} is not a regular expression that files.grep supports.",
        field="expression",
        hint="Look-arounds, back-references, named groups and flags are not supported; write \\{ for a "
        "literal brace.",
    )

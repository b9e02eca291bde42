"""Path guard: block calls with a path outside the allowed folders in their arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote

from dragoman.agent.hooks.events import Block, PreToolUse
from dragoman.agent.hooks.guards.json_strings import JsonString, strings_in
from dragoman.errors import ConfigError
from dragoman.unicode_normalisation import normalise_text

MAX_LENGTH = 4_096
MAX_DECODINGS = 5  # how often a text may be percent-encoded
PATH_FIELD = re.compile(
    r"(^|_)(paths?|files?|filenames?|dirs?|director(y|ies)|folders?|cwd|root|src|dest|destination)$",
    re.IGNORECASE,
)
PATH_START = re.compile(r"[~/\\]|\.\.?([/\\]|$)|[A-Za-z]:[/\\]|file:|\$\{?\w", re.IGNORECASE)
PARENT_STEP = re.compile(r"(^|[/\\])\.\.([/\\]|$)")
FILE_URL = re.compile(r"file:(//[^/\\]*)?", re.IGNORECASE)
WEB_URL = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def path_guard(
    roots: Sequence[str | Path],
    *,
    names: Sequence[str] | None = None,
    ignore: Sequence[str] = (),
    base: str | Path | None = None,
) -> Callable[[PreToolUse], Block | None]:
    """Return a `pre_tool_use` hook that blocks calls with a path outside of `roots`.

    With `names`, only the arguments of these names are paths, at any depth; without, all arguments with a
    name like `path` and all texts that look like a path, except the arguments in `ignore`. A relative path
    starts in `base`, by default the first root. Raises ConfigError without a root.
    """
    if not roots:
        raise ConfigError("path_guard needs at least one folder in `roots`")
    inside = [os.path.realpath(os.path.expanduser(root)) for root in roots]  # noqa: PTH111 - texts, not paths
    start = inside[0] if base is None else os.path.realpath(base)
    wanted, left_out = None if names is None else set(names), set(ignore)

    def path_guard(event: PreToolUse) -> Block | None:
        for found in strings_in(event.input):
            if not is_path(found, names=wanted, ignore=left_out):
                continue
            if any(is_outside(each, inside, base=start) for each in decoded_forms(found.text)):
                return Block(f"{found.text[:200]!r} is outside the allowed folders")
        return None

    return path_guard


def is_path(string: JsonString, *, names: set[str] | None, ignore: set[str]) -> bool:
    """Return whether a string is to be treated as a path."""
    if names is not None:
        return string.field in names
    if string.field in ignore:
        return False
    if PATH_FIELD.search(string.field) and not string.is_key:
        return not WEB_URL.match(string.text)
    return any(looks_like_path(each) for each in decoded_forms(string.text))


def looks_like_path(text: str) -> bool:
    if len(text) > MAX_LENGTH or WEB_URL.match(text):
        return False
    return bool(PATH_START.match(text) or PARENT_STEP.search(text) or ("/" in text and "\n" not in text))


def decoded_forms(text: str) -> Iterator[str]:
    """Yield the paths that a text may mean to one program or another: decoded, normalised, expanded."""
    seen = dict.fromkeys([text, text.strip(), text.strip("\"'")])
    for _ in range(MAX_DECODINGS):
        for each in list(seen):
            seen |= dict.fromkeys([unquote(each), normalise_text("NFKC", each)])
    for each in list(seen):
        bare = FILE_URL.sub("", each, count=1) if each.lower().startswith("file:") else each
        seen |= dict.fromkeys([bare, bare.replace("\\", "/"), os.path.expandvars(bare)])
    yield from seen


def is_outside(text: str, roots: Sequence[str], *, base: str) -> bool:
    """Return whether this path is outside all roots, as the system resolves it or by its text alone."""
    if "\0" in text or re.match(r"[A-Za-z]:[/\\]", text) or len(text) > MAX_LENGTH:
        return True
    path = os.path.join(base, os.path.expanduser(text))  # noqa: PTH111, PTH118 - `~x` that is nobody's stays
    if text.startswith("~") and not os.path.isabs(os.path.expanduser(text)):  # noqa: PTH111, PTH117
        return True
    try:
        ends = {os.path.realpath(path), os.path.realpath(os.path.normpath(path))}
    except (OSError, ValueError):
        return True
    return not all(any(end == root or is_below(end, root) for root in roots) for end in ends)


def is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip(os.sep) + os.sep)

"""The operations that come with the hub: time, arithmetic, questions, files, kept results, the web."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dragoman.operations.artifact import ArtifactStore
from dragoman.operations.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.tools import artifacts as kept
from dragoman.tools import clock as clocks
from dragoman.tools.calculator import calculate
from dragoman.tools.files import operations as shown
from dragoman.tools.question import question
from dragoman.tools.web import operations as pages
from dragoman.tools.web.host_policy import HostResolver, WebSettings


def builtin_operations(
    root: Path | None = None,
    *,
    clock: Callable[[], float] = time.time,
    files: Mapping[str, Path] | None = None,
    artifacts: ArtifactStore | None = None,
    web: WebSettings | None = None,
    resolve: HostResolver | None = None,
) -> list[Operation]:
    """All built-in operations that have what they need.

    `files.*` wants folders to show: a `root`, or `files` by name; `artifacts.*` a place where results are
    kept; `web.*` settings. `clock` gives unix seconds, `resolve` the IP addresses of a host.
    """
    made = [from_function(calculate, "math", effect="read", timeout=5), *clocks.operations(clock), question]
    if root is not None or files:
        made += shown.operations(root, files)
    if artifacts is not None:
        made += kept.operations(artifacts)
    if web is not None:
        made += pages.operations(web, resolve=resolve)
    return made

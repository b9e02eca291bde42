"""The built-in operations: time, arithmetic, questions, files, artifacts, the web."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from dragoman.operations.definitions.decorator import from_function
from dragoman.operations.operation import Operation
from dragoman.operations.results.artifact import ArtifactStore
from dragoman.tools import artifacts as artifact_operations
from dragoman.tools import clock as clock_operations
from dragoman.tools.calculator import calculate
from dragoman.tools.files import operations as file_operations
from dragoman.tools.question import question
from dragoman.tools.web import operations as web_operations
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
    """Return the built-in operations.

    `files.*` are included with a `root` or `files` (folders by name), `artifacts.*` with a store, `web.*`
    with settings. `clock` returns unix seconds, `resolve` the IP addresses of a host.
    """
    operations = [
        from_function(calculate, "math", effect="read", timeout=5),
        *clock_operations.operations(clock),
        question,
    ]
    if root is not None or files:
        operations += file_operations.operations(root, files)
    if artifacts is not None:
        operations += artifact_operations.operations(artifacts)
    if web is not None:
        operations += web_operations.operations(web, resolve=resolve)
    return operations

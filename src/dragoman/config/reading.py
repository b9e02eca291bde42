"""Reading a configuration: file and environment in, a `Config` out, or an error that says line and field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragoman.config.document import Document, read_document
from dragoman.config.environment import override
from dragoman.config.faults import Fault, dotted
from dragoman.config.rules import broken_rules
from dragoman.config.sections import Config
from dragoman.config.shape import fit
from dragoman.errors import ConfigError

HINT = "docs/configuration.md lists every field"
MOST = 20  # faults that are told at once


def read_config(path: Path | None, environ: Mapping[str, str] | None = None) -> Config:
    """What a YAML file and the environment say; the defaults without a path.

    `environ` is the process's own unless it is given. ConfigError names file, line and field of all faults.
    """
    around = os.environ if environ is None else environ
    source = "the environment" if path is None else str(path)
    document = Document() if path is None else read_document(_text(path), source=source, environ=around)
    override(document, around)
    return _settle(document, source=source)


def parse_config(raw: Any, *, source: str = "the configuration") -> Config:
    """The configuration in a decoded YAML value; the environment has no say."""
    document = Document()
    document.value = raw
    return _settle(document, source=source)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: no YAML: a byte that is no UTF-8") from None


def _settle(document: Document, *, source: str) -> Config:
    try:
        value, misfits = fit(document.value, Config, texts=document.texts)
        told = {fault.path for fault in document.faults}
        faults = [*document.faults, *(fault for fault in misfits if fault.path not in told)]
        if faults:
            raise _error(faults, document, source=source)
        config = msgspec.convert(value, Config)
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None
    if broken := list(broken_rules(config)):
        raise _error(broken, document, source=source)
    return config


def _error(faults: list[Fault], document: Document, *, source: str) -> ConfigError:
    """All faults in one error, in the order of the lines."""
    ordered = sorted(faults, key=lambda fault: document.line(fault.path))
    lines = [_line(fault, document, source=source) for fault in ordered[:MOST]]
    if len(faults) > MOST:
        lines.append(f"and {len(faults) - MOST} more")
    return ConfigError("\n".join(lines), hint=HINT)


def _line(fault: Fault, document: Document, *, source: str) -> str:
    where = document.where(fault.path, source=source)
    return ": ".join(piece for piece in (where, dotted(fault.path), fault.message) if piece)

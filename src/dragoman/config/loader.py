"""Read a configuration: file and environment in, a `Config` out, or an error with line and field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dragoman.config.environment_overrides import apply_environment
from dragoman.config.problems import ConfigProblem, format_path
from dragoman.config.sections import Config
from dragoman.config.type_check import check_types
from dragoman.config.validation import config_problems
from dragoman.config.yaml_document import ConfigDocument, read_document
from dragoman.errors import ConfigError

T = TypeVar("T")
DOCS_HINT = "docs/configuration.md lists every field"
DATABASE_VARIABLE = "DRAGOMAN_DATABASE"
MAX_PROBLEMS = 20  # listed in one error


def read_config(path: Path | None, environ: Mapping[str, str] | None = None) -> Config:
    """Read a YAML file and the environment; without a path, defaults and the environment.

    `environ` defaults to the process's. Raises ConfigError with the file, line and field of every problem.
    """
    source = _source_name(path)
    return _validate(_read_with_environment(path, environ, source=source), source=source)


def read_database(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """Return the URL of the database: from `DRAGOMAN_DATABASE`, else from a configuration; None for SQLite.

    The other fields of the file are not checked, so that a backup works with a configuration that does not
    start a hub. Raises ConfigError when the file cannot be read, or the URL is not valid.
    """
    url: Any = environ.get(DATABASE_VARIABLE)
    if not url:
        document = _read_with_environment(path, environ, source=_source_name(path))
        url = document.value.get("database") if isinstance(document.value, dict) else None
    if not url:
        return None
    return parse_config({"database": url}, source="the database").database


def read_section(path: Path, kind: type[T], *, environ: Mapping[str, str]) -> T:
    """Read a YAML file that holds one section. Raises ConfigError with the line of every problem."""
    document = read_document(_read_file(path), source=str(path), environ=environ)
    return _convert(document, kind, source=str(path))


def locate_error(error: ConfigError, path: Path, *, environ: Mapping[str, str] | None = None) -> ConfigError:
    """Return the error with file and line, if its message begins with the path of a field in this file.

    For what only a hub that starts can find out: operations that cannot be loaded, unknown names.
    """
    document = read_document(
        _read_file(path), source=str(path), environ=os.environ if environ is None else environ
    )
    fields = [field for field in document.lines if error.message.startswith(f"{format_path(field)}: ")]
    if not fields:
        return error
    where = document.location(max(fields, key=len), source=str(path))
    return ConfigError(f"{where}: {error.message}", hint=error.hint or DOCS_HINT)


def parse_config(raw: Any, *, source: str = "the configuration") -> Config:
    """Return the configuration in a decoded YAML value; the environment is not read.

    Raises ConfigError with the field of every problem.
    """
    document = ConfigDocument()
    document.value = raw
    return _validate(document, source=source)


def _source_name(path: Path | None) -> str:
    return "the environment" if path is None else str(path)


def _read_with_environment(
    path: Path | None, environ: Mapping[str, str] | None, *, source: str
) -> ConfigDocument:
    variables = os.environ if environ is None else environ
    document = (
        ConfigDocument()
        if path is None
        else read_document(_read_file(path), source=source, environ=variables)
    )
    apply_environment(document, variables)
    return document


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(
            f"cannot read {str(path)!r}: {error.strerror}", hint=f"this is the folder {str(Path.cwd())!r}"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not valid YAML: a byte that is not UTF-8") from None


def _convert(document: ConfigDocument, kind: type[T], *, source: str) -> T:
    """Return the value of a document as a section of this kind. Raises ConfigError with every problem."""
    try:
        value, type_problems = check_types(document.value, kind, texts=document.variable_texts)
        reported = {problem.path for problem in document.problems}
        problems = [
            *document.problems,
            *(problem for problem in type_problems if problem.path not in reported),
        ]
        if problems:
            raise _config_error(problems, document, source=source)
        return msgspec.convert(value, kind)
    except RecursionError:
        raise ConfigError(f"{source}: nested too deeply") from None


def _validate(document: ConfigDocument, *, source: str) -> Config:
    config = _convert(document, Config, source=source)
    if problems := list(config_problems(config)):
        raise _config_error(problems, document, source=source)
    return config


def _config_error(problems: list[ConfigProblem], document: ConfigDocument, *, source: str) -> ConfigError:
    """Return one error for all problems, in the order of their lines."""
    ordered = sorted(problems, key=lambda problem: document.line_of(problem.path))
    lines = [_format_problem(problem, document, source=source) for problem in ordered[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        lines.append(f"and {len(problems) - MAX_PROBLEMS} more")
    return ConfigError("\n".join(lines), hint=DOCS_HINT)


def _format_problem(problem: ConfigProblem, document: ConfigDocument, *, source: str) -> str:
    where = document.location(problem.path, source=source)
    return ": ".join(piece for piece in (where, format_path(problem.path), problem.message) if piece)

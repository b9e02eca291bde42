"""`dragoman init`: write the files of a new project."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import click
import typer
from msgspec.structs import replace

from dragoman.cli.terminal import examples, print_line, print_note
from dragoman.errors import BadRequest, ConfigError, Conflict

if TYPE_CHECKING:
    from dragoman.cli.init.discovery import ModelSource

commands = typer.Typer()
EPILOG = examples(
    ("dragoman init", "asks three questions, and writes dragoman.yaml"),
    ("dragoman init --yes", "asks nothing: the first model that is found"),
    ("dragoman init --model anthropic/claude-haiku-4-5", "with this model"),
    ("dragoman init --from litellm config.yaml", "from a configuration of LiteLLM"),
)
NOTHING_FOUND = """set OPENAI_API_KEY or ANTHROPIC_API_KEY, start Ollama, or try the small model that runs
  here: dragoman local install"""


@commands.command("init", epilog=EPILOG)
def init(
    *,
    source: Annotated[
        Literal["litellm"] | None,
        typer.Option("--from", help="Translate another gateway's configuration."),
    ] = None,
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="The file for --from.")] = None,
    folder: Annotated[Path, typer.Option(help="The folder of the project.")] = Path(),
    model: Annotated[
        str | None,
        typer.Option(metavar="PROVIDER/MODEL", help="The default model, of a provider found here."),
    ] = None,
    operation: Annotated[
        bool | None, typer.Option("--operation/--no-operation", help="Write an example operation.")
    ] = None,
    keys: Annotated[
        bool | None, typer.Option("--keys/--no-keys", help="Whether other people use it, each with a key.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take the defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a dragoman.yaml that is there.")] = False,
) -> None:
    """Start a project: write dragoman.yaml, a first operation and .gitignore.

    Finds keys in the environment, and Ollama, LM Studio, vLLM and llama.cpp on this machine. No key is
    written into a file: the configuration names the variable. Nothing is sent to any provider.
    """
    from dragoman.cli.init.project_files import CONFIG_FILE  # late: YAML takes 0.1 s, and --help should not

    if (source is None) != (file is None):
        raise BadRequest("--from and a file belong together", hint="dragoman init --from litellm config.yaml")
    config = folder / CONFIG_FILE
    if config.exists() and not force:
        raise Conflict(f"{config} already exists", hint="`dragoman check` explains it; --force replaces it")
    folder.mkdir(parents=True, exist_ok=True)
    asks = not yes and is_terminal()
    if file is not None:
        write_import(config, file)
    else:
        write_project(folder, model=model, operation=operation, asks=asks)
    if keys is None:
        keys = asks and not typer.confirm("Is it for you alone, on this machine?", default=True, err=True)
    print_next_steps(folder, keys=keys)


def write_import(config: Path, file: Path) -> None:
    """Write the translation of a LiteLLM configuration, and tell what it leaves out."""
    # late: YAML takes 0.1 s, and --help should not
    from dragoman.cli.init.litellm import import_litellm
    from dragoman.cli.init.project_files import HEADER, yaml_text  # late: as above

    imported = import_litellm(file)
    if "providers" not in imported.fields:
        raise ConfigError(
            f"{file} has no model that the hub can serve", hint="\n".join(imported.left_out) or None
        )
    left_out = "".join(f"#   {line}\n" for line in imported.left_out)
    note = f"# Not translated from {file.name}:\n{left_out}\n" if left_out else ""
    text = f"{HEADER}\n{note}{yaml_text(imported.fields)}\n"
    try:
        write_config(config, text)
    except ConfigError as error:  # variables that are not set here, but where the hub will run
        config.write_text(text, encoding="utf-8")
        print_note(error.message)
    print_line(f"wrote {config}")
    for line in imported.left_out:
        print_note(f"not translated: {line}")


def write_project(folder: Path, *, model: str | None, operation: bool | None, asks: bool) -> None:
    """Write the files for the models that this machine offers. ConfigError when there is none."""
    # late: YAML and the HTTP client take 0.3 s, and --help should not
    from dragoman.cli.init.discovery import find_sources
    from dragoman.cli.init.project_files import (  # late: as above
        CONFIG_FILE,
        IGNORE_FILE,
        OPERATION,
        OPERATIONS_FILE,
        config_text,
        ignore_text,
    )

    sources = find_sources(os.environ)
    if not sources:
        raise ConfigError("no key, no model server and no local model was found here", hint=NOTHING_FOUND)
    chosen = choose_source(sources, model=model, asks=asks)
    if operation is None:
        operation = not asks or typer.confirm("Write an example operation?", default=True, err=True)
    write_config(folder / CONFIG_FILE, config_text(sources, chosen, operation=operation))
    print_line(f"wrote {folder / CONFIG_FILE}: {chosen.default_model} answers ({chosen.found})")
    if operation and not (folder / OPERATIONS_FILE).exists():
        (folder / OPERATIONS_FILE).write_text(OPERATION, encoding="utf-8")
        print_line(f"wrote {folder / OPERATIONS_FILE}: the operation days.until")
    ignore = folder / IGNORE_FILE
    text = ignore_text(ignore.read_text(encoding="utf-8") if ignore.exists() else "")
    if text is not None:
        ignore.write_text(text, encoding="utf-8")
        print_line(f"wrote {ignore}: the data folder and .env stay out of git")


def choose_source(sources: Sequence[ModelSource], *, model: str | None, asks: bool) -> ModelSource:
    """Return the source whose model answers, with that model. BadRequest for one that was not found."""
    if model is not None:
        return named_source(sources, model)
    if not asks or len(sources) == 1:
        return sources[0]
    print_note("found on this machine:")
    for position, source in enumerate(sources, 1):
        print_line(f"  {position}  {source.default_model:<40}{source.found}")
    number: int = typer.prompt(
        "Which answers by default?", default=1, type=click.IntRange(1, len(sources)), err=True
    )
    return sources[number - 1]


def named_source(sources: Sequence[ModelSource], model: str) -> ModelSource:
    """Return the source of `provider/model`, with that model."""
    name, _, served = model.partition("/")
    found = next((source for source in sources if source.name == name), None)
    if found is None or not served:
        names = ", ".join(source.name for source in sources)
        raise BadRequest(
            f"{model!r} is not of a provider that was found here: {names}",
            hint="write PROVIDER/MODEL, and set the key of that provider in the environment",
        )
    return replace(found, model=served)


def write_config(path: Path, text: str) -> None:
    """Write a configuration, after it was read as `dragoman serve` would read it. Raises ConfigError."""
    from dragoman.config import read_config  # late: YAML takes 0.1 s, and --help should not

    draft = path.with_name(f".{path.name}.new")
    try:
        draft.write_text(text, encoding="utf-8")
        read_config(draft)
        draft.replace(path)
    except ConfigError as error:
        raise ConfigError(error.message.replace(str(draft), str(path)), hint=error.hint) from None
    except OSError as error:
        raise ConfigError(
            f"cannot write {str(path)!r}: {error.strerror}",
            hint="run it in a folder that this user may write to",
        ) from None
    finally:
        with suppress(OSError):
            draft.unlink()


def is_terminal() -> bool:
    """Whether somebody can answer questions."""
    return sys.stdin.isatty()


def print_next_steps(folder: Path, *, keys: bool) -> None:
    """Say what to type next."""
    where = "" if folder.resolve() == Path.cwd().resolve() else f"cd {folder} && "
    steps: Sequence[tuple[str, str]] = (
        (f"{where}dragoman serve --no-auth", "a hub for this machine, without keys"),
        ("dragoman chat", "talk to it, in another terminal"),
        ("dragoman doctor", "check it end to end"),
    )
    if keys:
        steps = (
            (f"{where}dragoman keys create --owner me --scope admin --scope chat", "a key, printed once"),
            ("dragoman serve", "the hub"),
            ("dragoman chat --key dgm_…", "talk to it, in another terminal"),
            ("dragoman doctor --key dgm_…", "check it end to end"),
        )
    width = max(len(command) for command, _ in steps) + 2
    print_line("\nNext:")
    for command, meaning in steps:
        print_line(f"  {command:<{width}}{meaning}")

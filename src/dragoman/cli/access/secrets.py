"""`dragoman secrets`: provider keys and other secrets, encrypted in the data folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from dragoman.cli.access.keys import run_with_store
from dragoman.cli.data_folder import create_data_folder, require_data_folder
from dragoman.cli.options import DEFAULT_DATA, AsJson, ConfigFile, Data
from dragoman.cli.terminal import examples, format_age, print_json, print_line, print_note, print_table
from dragoman.errors import BadRequest, ConfigError, NotFound

if TYPE_CHECKING:
    from dragoman.store.encryption import MasterKey
    from dragoman.store.secrets import Secret

Id: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]
NEW_VARIABLE = "DRAGOMAN_NEW_MASTER_KEY"

secrets = typer.Typer(no_args_is_help=True, help="Secrets: provider keys and others, stored encrypted.")


@secrets.command(
    "set",
    epilog=examples(
        ("dragoman secrets set openai", "asks for the value, without showing it"),
        ("pass show openai | dragoman secrets set openai", "takes it from a pipe"),
    ),
)
def set_secret(id: Id, *, data: Data = DEFAULT_DATA, config: ConfigFile = None) -> None:
    """Store a secret. Its value comes from a pipe or a prompt, never from the command line.

    It is encrypted with the master key of the configuration, or else of DRAGOMAN_MASTER_KEY, or of the file
    that DRAGOMAN_MASTER_KEY_FILE names.
    """
    master = require_master_key(config)
    value = read_value()
    folder = create_data_folder(data, config=config)
    run_with_store(folder, lambda store: store.secrets.put(id, value), config=config, master=master)
    print_note(f"secret {id} is stored, encrypted with the master key {master.fingerprint}")


@secrets.command(
    "list", epilog=examples(("dragoman secrets list", "names and dates; values are never shown"))
)
def list_secrets(*, data: Data = DEFAULT_DATA, json: AsJson = False) -> None:
    """List all secrets, without their values."""
    found = run_with_store(require_data_folder(data), lambda store: store.secrets.list())
    if json:
        print_json({"secrets": [secret_to_json(secret) for secret in found]})
        return
    if not found:
        print_note("there is no secret yet: dragoman secrets set NAME")
        return
    rows = [
        (each.name, format_age(each.created_at), format_age(each.updated_at), each.key_id) for each in found
    ]
    print_table(("NAME", "MADE", "SET", "MASTER KEY"), rows)


@secrets.command("delete", epilog=examples(("dragoman secrets delete openai", "nothing of it stays")))
def delete(id: Id, *, data: Data = DEFAULT_DATA) -> None:
    """Delete a secret."""
    if not run_with_store(require_data_folder(data), lambda store: store.secrets.delete(id)):
        raise NotFound(f"there is no secret {id!r}", hint="`dragoman secrets list` shows them")
    print_note(f"secret {id} is deleted")


@secrets.command(
    "rotate",
    epilog=examples(
        ("dragoman secrets rotate --write master.new", "makes the new key and writes it there"),
        ("dragoman secrets rotate --new-key-file master.new", "takes one that is there"),
    ),
)
def rotate(
    *,
    data: Data = DEFAULT_DATA,
    config: ConfigFile = None,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Make the new master key, and write it to this file.")
    ] = None,
    new_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"A file with the new master key; or set {NEW_VARIABLE}."),
    ] = None,
) -> None:
    """Re-encrypt all secrets with a new master key, in one transaction: all of them or none.

    The current key comes from the configuration or the environment. A running hub keeps using the values
    that it has read; restart it with the new key.
    """
    old, new = require_master_key(config), new_master_key(write, new_key_file)
    folder = require_data_folder(data)
    count = run_with_store(folder, lambda store: store.secrets.rotate(new), config=config, master=old)
    what = "1 secret is" if count == 1 else f"{count} secrets are"
    print_note(f"{what} sealed with the master key {new.fingerprint}; {old.fingerprint} opens none now")


@secrets.command(
    "generate-key",
    epilog=examples(
        (
            "dragoman secrets generate-key --write master.key",
            "then: export DRAGOMAN_MASTER_KEY_FILE=master.key",
        ),
        ("export DRAGOMAN_MASTER_KEY=$(dragoman secrets generate-key)", "for this shell alone"),
    ),
)
def generate_key(
    *,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A new file, which only you can read.")
    ] = None,
) -> None:
    """Create a master key. Losing it loses the secrets: keep it apart from the data folder."""
    from dragoman.store.encryption import MasterKey  # late: SQLAlchemy takes 0.2 s, and --help should not

    key = MasterKey.generate()
    if write is None:
        print_line(key.to_text())
        return
    write_key_file(key, write)
    print_note(f"the master key {key.fingerprint} is in {write}")


def require_master_key(config: Path | None) -> MasterKey:
    """Return the master key that a hub of this configuration uses. ConfigError without one."""
    from dragoman.cli.config_discovery import read_config_if_any  # late: as above
    from dragoman.config import master_key  # late: as above
    from dragoman.store.encryption import MasterKey  # late: as above

    loaded = read_config_if_any(config)
    text = master_key(loaded, os.environ)
    if text is None:
        variable = loaded.master_key_env
        raise ConfigError(
            f"there is no master key: set {variable} or {variable}_FILE, or master_key_file in dragoman.yaml",
            hint="`dragoman secrets generate-key --write FILE` makes one",
        )
    return MasterKey.from_text(text)


def new_master_key(write: Path | None, file: Path | None) -> MasterKey:
    """Return the new master key: generated, from a file, or from the environment."""
    # late: as above
    from dragoman.store.encryption import MasterKey, read_key_file

    text = os.environ.get(NEW_VARIABLE)
    if sum(each is not None for each in (write, file, text)) != 1:
        raise typer.BadParameter(f"give one of --write FILE, --new-key-file FILE and {NEW_VARIABLE}")
    if file is not None:
        return read_key_file(file)
    if text is not None:
        return MasterKey.from_text(text)
    key = MasterKey.generate()
    if write is not None:
        write_key_file(key, write)  # first, so that a crash cannot lose a key that is in use
    return key


def write_key_file(key: MasterKey, path: Path) -> None:
    """Write a key to a new file that only this user can read."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise BadRequest(
            f"there is a file {str(path)!r} already", hint="choose another, or move it"
        ) from None
    with os.fdopen(file, "w") as opened:
        opened.write(key.to_text() + "\n")


def read_value() -> str:
    """Read the value from stdin or from a hidden prompt."""
    if sys.stdin.isatty():
        value = str(typer.prompt("value", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value.strip():
        raise BadRequest(
            "there is no value on stdin", hint="pipe it in, or run this in a terminal to be asked"
        )
    return value


def secret_to_json(secret: Secret) -> dict[str, Any]:
    return {
        "name": secret.name,
        "masterKey": secret.key_id,
        "createdAt": secret.created_at,
        "updatedAt": secret.updated_at,
    }

"""`dragoman vault`: the secrets of teams that the operator manages."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from dragoman.cli.access.keys import run_with_store
from dragoman.cli.access.secrets import read_value, require_master_key
from dragoman.cli.data_folder import create_data_folder, require_data_folder
from dragoman.cli.options import DEFAULT_DATA, AsJson, ConfigFile, Data
from dragoman.cli.terminal import examples, format_age, print_json, print_note, print_table

Team: TypeAlias = Annotated[str, typer.Option("--team", metavar="NAME", help="The team.")]
Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", help="The secret's name.")]

Origins: TypeAlias = Annotated[
    list[str],
    typer.Option("--to", metavar="ORIGIN", help="Where an input with an address may send it; * for all."),
]

vault = typer.Typer(no_args_is_help=True, help="Vaults: secrets that a team's operations receive.")


@vault.command(
    "set",
    epilog=examples(
        (
            "dragoman vault set github --team release --for web.fetch --to https://api.github.com",
            "asks for the value",
        ),
        ("pass show npm | dragoman vault set npm --team release --for 'mcp_npm.*'", "takes it from a pipe"),
    ),
)
def set_entry(
    name: Name,
    *,
    team: Team,
    receivers: Annotated[
        list[str], typer.Option("--for", metavar="PATTERN", help="Operations that may receive the value.")
    ],
    origins: Origins = [],  # noqa: B006 - Typer makes a list of options for each call
    plain: Annotated[bool, typer.Option("--plain", help="Let the team's model read the value.")] = False,
    data: Data = DEFAULT_DATA,
    config: ConfigFile = None,
) -> None:
    """Store a secret of a team. The team uses it by its handle, secret:NAME, and cannot change it.

    Its value comes from a pipe or a prompt, never from the command line.
    """
    # late: schemas and SQLAlchemy take 0.2 s
    from dragoman.store.teams.vault import OPERATOR, VaultEntry
    from dragoman.teams.vault.operations import check_name, check_receivers, check_value  # late: as above
    from dragoman.teams.vault.origins import check_origins  # late: as above

    master = require_master_key(config)
    entry = VaultEntry(
        team=team,
        owner=OPERATOR,
        name=check_name(name),
        receivers=check_receivers(receivers),
        origins=check_origins(origins),
        plain=plain,
    )
    value = check_value(read_value())
    folder = create_data_folder(data, config=config)
    run_with_store(folder, lambda store: store.vault.put(entry, value), config=config, master=master)
    print_note(f"secret:{name} of the team {team} is stored; runs that begin from now on use it")


@vault.command(
    "bind",
    epilog=examples(
        ("dragoman vault bind github --team release --to https://api.github.com", "the value stays"),
        ("dragoman vault bind github --team release", "operations with an address no longer get it"),
    ),
)
def bind(
    name: Name,
    *,
    team: Team,
    origins: Origins = [],  # noqa: B006 - as above
    data: Data = DEFAULT_DATA,
    config: ConfigFile = None,
) -> None:
    """Replace the origins that a secret of the operator may be sent to. Its value stays."""
    from dragoman.store.teams.vault import OPERATOR  # late: as above
    from dragoman.teams.vault.origins import check_origins  # late: as above

    checked = check_origins(origins)
    run_with_store(
        require_data_folder(data),
        lambda store: store.vault.bind(team, OPERATOR, name=name, origins=checked),
        config=config,
    )
    print_note(f"secret:{name} of the team {team} may be sent to: {', '.join(checked) or 'no address'}")


@vault.command("list", epilog=examples(("dragoman vault list --team release", "values are never shown")))
def list_entries(
    *, team: Team, data: Data = DEFAULT_DATA, config: ConfigFile = None, json: AsJson = False
) -> None:
    """List the secrets of a team that the operator manages, without their values."""
    from dragoman.store.teams.vault import OPERATOR  # late: as above

    folder = require_data_folder(data)
    found = run_with_store(folder, lambda store: store.vault.list(team, OPERATOR), config=config)
    if json:
        from dragoman.server.teams.memory import entry_to_json  # late: as above

        print_json({"secrets": [entry_to_json(entry) for entry in found]})
        return
    if not found:
        print_note(f"the team {team} has no secret: dragoman vault set NAME --team {team} --for OPERATION")
        return
    rows = [
        (
            entry.name,
            ", ".join(entry.receivers),
            ", ".join(entry.origins) or "-",
            "yes" if entry.plain else "no",
            format_age(entry.updated_at),
        )
        for entry in found
    ]
    print_table(("NAME", "FOR", "TO", "PLAIN", "SET"), rows)


@vault.command("delete", epilog=examples(("dragoman vault delete npm --team release", "nothing of it stays")))
def delete(name: Name, *, team: Team, data: Data = DEFAULT_DATA, config: ConfigFile = None) -> None:
    """Delete a secret of a team that the operator manages."""
    from dragoman.store.teams.vault import OPERATOR  # late: as above

    folder = require_data_folder(data)
    run_with_store(folder, lambda store: store.vault.delete(team, OPERATOR, name=name), config=config)
    print_note(f"secret:{name} of the team {team} is deleted")

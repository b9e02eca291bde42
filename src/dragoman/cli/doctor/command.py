"""`dragoman doctor`: the command."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.logging_setup import configure_logging
from dragoman.cli.options import DEFAULT_DATA, DEFAULT_HUB, AsJson, ConfigFile, Data, Hub, Key
from dragoman.cli.terminal import examples, print_json, print_line

if TYPE_CHECKING:
    from dragoman.cli.doctor.findings import Finding, Findings

commands = typer.Typer()
EPILOG = examples(
    ("dragoman doctor", "check this folder's hub: configuration, data, models, address"),
    (
        "dragoman doctor --ask",
        "and send the default model a tiny request, which may cost a fraction of a cent",
    ),
    ("dragoman doctor --hub https://hub.example.com --key dgm_…", "check a hub elsewhere, through its proxy"),
    ("dragoman doctor --json", "the findings as JSON, for programs"),
)


@commands.command("doctor", epilog=EPILOG)
def doctor(
    *,
    hub: Hub = None,
    key: Key = None,
    config: ConfigFile = None,
    data: Data = DEFAULT_DATA,
    ask: Annotated[bool, typer.Option("--ask", help="Ask the default model, through the hub.")] = False,
    json: AsJson = False,
) -> None:
    """Check an installation end to end, and say what to do.

    Checks the configuration, the data folder and its permissions, disk space, the database, whether anybody
    has a key, each provider (by its list of models, which costs nothing), the clock and the sandbox. Then it
    asks the running hub: its version, the key, streams and WebSockets through the address in use, providers,
    operations, MCP servers and the console. With `--hub` and neither a configuration nor data here, only the
    hub is asked. Nothing is changed, and no secret is printed. Exits with 1 when a check failed.
    """
    # late: the server takes 0.3 s, and --help needs none of it
    from dragoman.cli.doctor.findings import summarize

    configure_logging("error", as_json=False)
    here = hub is None or config is not None or is_installation(data)
    checks = run_checks(config, data, url=hub or DEFAULT_HUB, key=key, here=here, ask=ask)
    findings = asyncio.run(collect(checks, prints=not json))
    failed = any(each.state == "failed" for each in findings)
    if json:
        print_json({"ok": not failed, "findings": findings})
    else:
        print_line(f"\n{summarize(findings)}")
    raise typer.Exit(1 if failed else 0)


def is_installation(data: Path) -> bool:
    """Whether this folder is that of a hub."""
    from dragoman.cli.data_folder import has_data, is_configured  # late: as above

    return has_data(data) or is_configured(None)


async def run_checks(
    config: Path | None, data: Path, *, url: str, key: str | None, here: bool, ask: bool
) -> Findings:
    """Yield the findings of all checks."""
    from dragoman.cli.doctor.installation import check_installation  # late: as above
    from dragoman.cli.doctor.running_hub import check_hub  # late: as above

    if here:
        async for finding in check_installation(config, data):
            yield finding
    async for finding in check_hub(url, key, ask=ask):
        yield finding


async def collect(checks: Findings, *, prints: bool) -> list[Finding]:
    """Return the findings, without secrets; print each as it comes where `prints` is set."""
    from dragoman.cli.doctor.findings import print_finding, redacted  # late: as above

    findings = []
    async for each in checks:
        finding = redacted(each)
        findings.append(finding)
        if prints:
            print_finding(finding)
    return findings

"""Checks of what is on this machine: configuration, data, database, providers, clock, sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from dragoman.cli.config_discovery import choose_config, locating_errors
from dragoman.cli.data_folder import has_data
from dragoman.cli.doctor.findings import Finding, Findings, ok
from dragoman.cli.local import is_installed
from dragoman.cli.serving.check import database_warnings
from dragoman.config import Config, ProviderConfig, key_sources
from dragoman.errors import DragomanError, ProviderError
from dragoman.providers.local.provider import LocalProvider
from dragoman.providers.provider import Provider
from dragoman.providers.remote import RemoteProvider
from dragoman.server.app.config_summary import explain_config
from dragoman.server.app.dry_run import check_database, check_startup
from dragoman.server.app.providers import ProviderSet
from dragoman.store.maintenance.location import DatabaseLocation
from dragoman.store.maintenance.migration import read_revision
from dragoman.store.schema import HEAD
from dragoman.store.store import Store
from dragoman.tools.shell.sandbox import Sandbox

GIGABYTE = 1_000_000_000
LOW_DISK, FULL_DISK = 2 * GIGABYTE, 100_000_000
MAX_CHECKED = 512_000_000  # bytes of a database whose pages are all read
MAX_SKEW = 30.0  # seconds; a Date header has whole ones, and the answer takes its time
PROBE_SECONDS = 10.0
INSTALL_SANDBOX = "Install bubblewrap."
NO_MODEL_LIST = frozenset({404, 405, 501})


async def check_installation(file: Path | None, data: Path) -> Findings:
    """Yield the findings about this machine."""
    config: Config | None = None
    try:
        config, source = choose_config(file)
        with locating_errors(source):
            unknown_names = await check_startup(config, os.environ)
        yield ok("configuration", f"{source}; {config.model or 'no model'} answers by default")
        for name in unknown_names:
            yield Finding("configuration", "warning", name, "correct the name, or remove the rule")
    except DragomanError as error:
        yield Finding("configuration", "failed", error.message, error.hint or "`dragoman check` explains it")
    for finding in check_folder(data):
        yield finding
    async for finding in check_data(config or Config(), data):
        yield finding
    if config is not None:
        async for finding in check_providers(config):
            yield finding
    yield await check_sandbox(needed=config is not None and config.shell == "sandbox")


def check_folder(data: Path) -> Iterator[Finding]:
    """Yield whether the data folder is private and can be written, and how much room it has."""
    if not data.is_dir():
        yield Finding(
            "data folder", "skipped", f"there is none at {data.absolute()}", "`dragoman serve` makes it;"
            " where the hub has another one, name it with --data",
        )  # fmt: skip
        return
    found = data.stat()
    if found.st_uid != os.geteuid():
        yield Finding(
            "data folder", "failed", f"{data.absolute()} belongs to the user {found.st_uid}",
            "run the hub, and this command, as the user to whom the folder belongs",
        )  # fmt: skip
    elif stat.S_IMODE(found.st_mode) & 0o077:
        yield Finding(
            "data folder", "warning", f"other users may read {data.absolute()}",
            f"chmod 700 {data.absolute()} (a hub does it at its start)",
        )  # fmt: skip
    else:
        yield check_writable(data)
    yield check_disk(data, shutil.disk_usage(data).free)


def check_disk(data: Path, free: int) -> Finding:
    """Return whether there is room for `free` bytes of data."""
    message = f"{free / GIGABYTE:.1f} GB free beside {data.absolute()}"
    if free >= LOW_DISK:
        return ok("disk", message)
    todo = "make room, or shorten `retention`; `dragoman database compact` gives space back"
    return Finding("disk", "failed" if free < FULL_DISK else "warning", message, todo)


def check_writable(data: Path) -> Finding:
    """Return whether a file can be made in the folder."""
    try:
        with tempfile.TemporaryFile(dir=data) as file:
            file.write(b"x")
    except OSError as error:
        todo = "look at the rights of the folder, and whether its file system is mounted read-only or full"
        return Finding("data folder", "failed", f"{data.absolute()}: {error.strerror}", todo)
    return ok("data folder", f"{data.absolute()} is private and can be written")


async def check_data(config: Config, data: Path) -> Findings:
    """Yield the state of the database, and whether anybody has a key."""
    if config.database is not None:
        try:
            found = await check_database(config)
        except DragomanError as error:
            yield Finding("database", "failed", error.message, error.hint)
            return
        for finding in postgres_findings(found or {}):
            yield finding
        return
    if not has_data(data):
        yield Finding("database", "skipped", "there is none yet", "`dragoman serve` makes it")
        return
    finding = await asyncio.to_thread(check_sqlite, data)
    yield finding
    if finding.state == "ok":
        yield await check_keys(data)


def postgres_findings(found: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about a Postgres database."""
    if found.get("problem") is not None:
        todo = "start it, or look at the address, the user and the password in the URL"
        yield Finding("database", "failed", f"{found['url']}: {found['problem']}", todo)
        return
    warnings = database_warnings(found)
    for each in warnings:
        yield Finding("database", "warning", each, "`dragoman check` shows its clock and its connections")
    if not warnings:
        yield ok(
            "database", f"{found['url']}, Postgres {found['version']}, clock {found['clockSkew']:+.1f} s"
        )


def check_sqlite(data: Path) -> Finding:
    """Return whether the SQLite file is whole, and whether this program can use it."""
    location = DatabaseLocation.of_folder(data)
    restore = "restore a backup: `dragoman database restore` (docs/databases.md)"
    try:
        revision = read_revision(location.backend(exclusive=False))
        size = location.path.stat().st_size if location.path else 0
        problem = find_damage(location.path) if location.path and size <= MAX_CHECKED else None
    except (DragomanError, sqlite3.Error) as error:
        return Finding("database", "failed", f"{location.name}: {error}", restore)
    if problem is not None:
        return Finding("database", "failed", f"{location.name} is damaged: {problem}", restore)
    if revision != HEAD:
        message = f"{location.name} has the tables of revision {revision}, this program those of {HEAD}"
        return Finding(
            "database", "warning", message, "a hub migrates older ones at its start; back up first"
        )
    return ok("database", f"{location.name}, {size / 1e6:.1f} MB, revision {revision}")


def find_damage(path: Path) -> str | None:
    """Return what SQLite finds wrong with a file; None if it is whole."""
    with sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True) as raw:
        found = raw.execute("PRAGMA quick_check(1)").fetchone()
    raw.close()
    return None if found == ("ok",) else str(found[0])


async def check_keys(data: Path) -> Finding:
    """Return whether anybody has a valid key."""
    async with await Store.open(data, exclusive=False) as store:
        valid = [key for key in await store.keys.list() if is_valid(key.revoked_at, key.expires_at)]
    if valid:
        return ok("keys", f"{len(valid)} valid")
    return Finding("keys", "warning", "nobody has a key", "dragoman keys create --owner NAME")


def is_valid(revoked_at: float | None, expires_at: float | None) -> bool:
    """Return whether a key with these dates can be used now."""
    return revoked_at is None and (expires_at is None or expires_at > time.time())


async def check_providers(config: Config) -> Findings:
    """Yield whether each provider answers. Hosted ones are asked for their models, which costs nothing."""
    providers = ProviderSet(config, os.environ, secrets={})
    skews: list[float] = []
    try:
        for meaning in explain_config(config, os.environ)["providers"]:
            name = meaning["name"]
            unread = find_unread_key(config.providers[name], meaning["keys"], check=f"provider {name}")
            yield unread or await check_provider(name, providers.providers[name], skews=skews)
    finally:
        await providers.close()
    yield check_clock(skews)


def find_unread_key(
    provider: ProviderConfig, keys: Sequence[Mapping[str, str]], *, check: str
) -> Finding | None:
    """Return why a provider's keys cannot be tried from here; None where they can."""
    if any(place.api_key_secret for place in key_sources(provider).values()):
        return Finding(
            check, "skipped", "its key is in the encrypted table: see what the hub says of it below"
        )
    missing = [key["from"] for key in keys if key["state"] == "missing"]
    if not missing:
        return None
    todo = "set it where the hub is started, or store it: `dragoman secrets set`"
    return Finding(check, "failed", f"its key is missing: {', '.join(missing)}", todo)


async def check_provider(name: str, provider: Provider, *, skews: list[float]) -> Finding:
    """Return whether a provider answers; append how far its clock is from ours."""
    check = f"provider {name}"
    if isinstance(provider, LocalProvider):
        if is_installed():
            return ok(check, "the local model is installed")
        return Finding(check, "failed", "the local model is not installed", "dragoman local install")
    if not isinstance(provider, RemoteProvider):
        return Finding(check, "skipped", f"{provider.family}: nothing to ask without an answer", None)
    address = provider.server.display_url
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            date = await provider.probe()
    except TimeoutError:
        todo = "is the address right, and may this machine reach it (proxy, firewall)?"
        return Finding(check, "failed", f"{address} does not answer in {PROBE_SECONDS:g} s", todo)
    except ProviderError as error:
        if error.upstream_status in NO_MODEL_LIST:
            return Finding(check, "warning", f"{address} answers and does not list its models", "try --ask")
        return Finding(check, "failed", f"{address}: {error.message}", error.hint or provider_todo(error))
    if date is not None:
        skews.append(parsedate_to_datetime(date).timestamp() - time.time())
    return ok(check, f"{address} answers and accepts the key")


def provider_todo(error: ProviderError) -> str:
    """Return what to do about an error of a provider."""
    if error.category == "auth":
        return "the key is wrong or may not do this: make another one at the provider"
    if error.upstream_status is None:
        return "is it running, is the address right, and may this machine reach it (proxy, firewall)?"
    return "try again later, or look at the provider's status page"


def check_clock(skews: list[float]) -> Finding:
    """Return whether this machine's clock agrees with those of the providers that sent their time."""
    if not skews:
        return Finding("clock", "skipped", "no provider has sent its time; there is nothing to compare with")
    skew = sorted(skews)[len(skews) // 2]
    if abs(skew) <= MAX_SKEW:
        return ok("clock", f"within {MAX_SKEW:g} s of the providers'")
    todo = "set it by NTP: keys expire, and schedules start, by this clock"
    return Finding("clock", "failed", f"it is {-skew:+.0f} s off the providers' clocks", todo)


async def check_sandbox(*, needed: bool) -> Finding:
    """Return whether commands can run in a sandbox."""
    if not needed:
        return Finding("sandbox", "skipped", "the configuration does not use it (`shell`)")
    try:
        await Sandbox().check()
    except DragomanError as error:
        todo = f"{error.hint or INSTALL_SANDBOX} Without it, the tool shell.run and plugins refuse."
        return Finding("sandbox", "warning", error.message, todo)
    return ok("sandbox", "bubblewrap works")

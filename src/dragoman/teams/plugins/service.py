"""The life of a plugin: proposed, verified in the sandbox, approved, called, deprecated.

A plugin is callable while it is active and verified, its file is what was approved, `allowed_tools` of the
team match it, and the active skill of the run declares it. Each of these is checked at the call.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from msgspec.structs import replace

from dragoman.errors import CallError, CallTimeout, Conflict, DragomanError, StoreError, Unavailable
from dragoman.identity import Identity
from dragoman.operations.call_limiter import KeyedSlots
from dragoman.operations.context import Context
from dragoman.operations.operation import Operation
from dragoman.operations.permission.policy import Rule, Verdict
from dragoman.operations.registry import Registry
from dragoman.store.hosts.signals import Wakeup
from dragoman.teams.generated_files import GeneratedFiles
from dragoman.teams.plugins.process import PluginCrashed, PluginProcess
from dragoman.teams.plugins.static_check import PluginSource, hash_of, parse_plugin
from dragoman.teams.plugins.store import PluginRecord, PluginState, PluginStore
from dragoman.teams.registry import TeamRegistry
from dragoman.tools.shell.sandbox import Sandbox

DeclaredTools: TypeAlias = Callable[[Context], Collection[str]]
"""Returns the ids of the operations that the active skill of a call's run declares."""

log = logging.getLogger(__name__)
SOURCE_PREFIX = "plugin:"
FOLLOW_INTERVAL = 30.0
TEST_SECONDS = 10.0
VERIFY_SECONDS = 60.0
MAX_PLUGINS = 100  # of one team and owner
MAX_VERIFICATIONS = 2  # of one owner at a time: each may take 300 MB and a processor
MAX_CRASHES = 3  # in CRASH_SECONDS: then it is not verified any more
CRASH_SECONDS = 300.0


class Plugins:
    """The plugins of a hub's teams. Call `load` when the database answers, `close` at the end."""

    def __init__(
        self,
        teams: TeamRegistry,
        store: PluginStore,
        *,
        registry: Registry,
        sandbox: Sandbox,
        declared_tools: DeclaredTools,
    ) -> None:
        self.store = store
        self._teams = teams
        self._files = GeneratedFiles(teams)
        self._registry = registry
        self._sandbox = sandbox
        self._declared_tools = declared_tools
        self._processes: dict[str, PluginProcess] = {}
        self._crashes: dict[str, deque[float]] = {}
        self._changing = asyncio.Lock()
        """Held from the last check of a record until it is stored, and while records are read again."""
        self._verifications = KeyedSlots(MAX_VERIFICATIONS)
        """The verifications under way, limited for each owner."""

    async def load(self) -> None:
        """Register the active plugins. Raises Unavailable."""
        for record in await self.store.load():
            if record.state == "active" and self._teams.find(record.team) is not None:
                self._try_register(record)

    def _try_register(self, record: PluginRecord) -> None:
        """Register a plugin; one that cannot be is left out, and does not stop the hub."""
        try:
            self._register(record)
        except DragomanError as error:
            log.warning("the plugin %s is left out: %s", record.id, error.message)

    async def follow(self, wakeup: Wakeup) -> None:
        """Apply the changes of other hosts after each wake-up, until cancelled."""
        while True:
            await wakeup.wait(FOLLOW_INTERVAL)
            with suppress(StoreError, Unavailable):
                await self.refresh()

    async def refresh(self) -> None:
        """Register the plugins that are active now, and no others. Raises Unavailable.

        The file of one that another host has activated is written here too, unless somebody has changed it.
        """
        async with self._changing:
            for record in await self.store.load():
                await self._refresh(record)

    async def _refresh(self, record: PluginRecord) -> None:
        existing = find(self._registry, record.id)
        is_active = record.state == "active" and self._teams.find(record.team) is not None
        is_current = existing is not None and existing.provider == provider_of(record)
        if is_active == is_current:
            return
        self._unregister(record.id)
        await self._end(record.id)
        if is_active and find(self._registry, record.id) is None:
            await asyncio.to_thread(self._write_missing, record)
            self._try_register(record)

    def _write_missing(self, record: PluginRecord) -> None:
        try:
            self._write(record)
        except (DragomanError, OSError) as error:
            log.warning("the file of the plugin %s cannot be written here: %s", record.id, error)

    def _write(self, record: PluginRecord) -> None:
        """Write the file of a plugin if there is none, or if it is an earlier approved source."""
        path = self._files.path(record.team, file_name(record.name))
        if not path.exists() or hash_of(read_source_file(path)) in record.earlier:
            self._files.write(record.team, file_name(record.name), content=record.source)

    async def close(self) -> None:
        """End the processes of all plugins."""
        await asyncio.gather(*(process.close() for process in self._processes.values()))

    def restrict(self, operation: Operation, context: Context) -> Verdict | None:
        """Deny a plugin to everybody but its team, and to it too unless the active skill declares it."""
        if not is_plugin(operation):
            return None
        team = self._teams.team_of(context)
        if team is None or team.name != operation.namespace:
            return denial(f"it is a plugin of the team {operation.namespace!r}")
        declared = {id.lower() for id in self._declared_tools(context)}
        if not declared & {operation.id.lower(), operation.name.lower()}:
            return denial("no active skill of this run declares it")
        return None

    async def propose(self, team: str, name: str, *, text: str, by: Identity) -> PluginRecord:
        """Check a source, run its tests in the sandbox, and store it. It is not callable before `activate`.

        Raises BadRequest for a source that is refused, CallError for one whose tests fail.
        """
        async with self._verifications.acquire(by.owner):
            source = await parse_plugin(name, text)
            self._check_free(team, name, owner=by.owner)
            return await self._propose(team, source, by=by)

    async def _propose(self, team: str, source: PluginSource, *, by: Identity) -> PluginRecord:
        record = PluginRecord(
            team=team,
            name=source.name,
            owner=by.owner,
            state="proposed",
            hash=source.hash,
            source=source.text,
            description=source.description,
            schema=source.schema,
            effect=source.effect,
        )
        try:
            await self.verify(source)
        except CallError as error:
            await self._store_proposal(replace(record, state="failed_verification", reason=error.message))
            raise
        return await self._store_proposal(record)

    async def _store_proposal(self, record: PluginRecord) -> PluginRecord:
        """Store a plugin in place of the one of this name. Raises Conflict."""
        async with self._changing:
            self._check_free(record.team, record.name, owner=record.owner)  # it may be taken by now
            await self._end(record.id)
            replaced = self.store.find(record.team, record.name)
            earlier = () if replaced is None else replaced.approved_hashes
            return await self.store.put(replace(record, earlier=earlier))

    async def activate(
        self, team: str, name: str, *, hash: str, schema: Mapping[str, Any], by: Identity
    ) -> PluginRecord:
        """Make a proposed plugin callable, whose hash and schema a person has approved. Raises Conflict."""
        record = self.store.get(team, name, owner=by.owner)
        if record.state not in ("proposed", "deprecated"):
            raise Conflict(f"The plugin {record.id} is {record.state}.", hint="Propose it again.")
        if hash != record.hash or dict(schema) != dict(record.schema):
            raise Conflict(
                f"The plugin {record.id} has another hash or schema than was approved.",
                hint="Take both from plugins.list.",
            )
        async with self._changing:
            self._check_free(team, name, owner=by.owner)
            if self.store.get(team, name, owner=by.owner) != record:
                raise Conflict(
                    f"The plugin {record.id} was changed meanwhile.", hint="Take it from plugins.list."
                )
            await asyncio.to_thread(self._files.write, team, file_name(name), content=record.source)
            active = await self.store.put(replace(record, state="active", reason=None, approved_by=by.owner))
            self._register(active)
        return active

    async def deprecate(self, team: str, name: str, *, reason: str, by: Identity) -> PluginRecord:
        """Make a plugin no longer callable; it can be activated again."""
        async with self._changing:
            record = self.store.get(team, name, owner=by.owner)
            if record.state != "active":
                raise Conflict(f"The plugin {record.id} is {record.state}.")
            return await self._retire(record, "deprecated", reason=reason)

    async def verify(self, source: PluginSource) -> None:
        """Run the tests of a source in the sandbox. Raises CallError for the first that fails."""
        process = PluginProcess(source.text, self._sandbox)
        try:
            async with asyncio.timeout(VERIFY_SECONDS):
                await run_tests(source, process)
        except TimeoutError:
            raise CallError(f"The tests took longer than {VERIFY_SECONDS:g} seconds.") from None
        finally:
            await process.end()

    async def call(self, team: str, name: str, *, input: Mapping[str, Any], hash: str | None = None) -> Any:
        """Run an active plugin; with a `hash`, only while it has this source. Raises CallError."""
        record = self._active(team, name, hash=hash)
        await self._check_file(record)
        self._active(team, name, hash=record.hash)  # it may have been deactivated or replaced meanwhile
        process = self._processes.get(record.id)
        if process is None:
            process = self._processes[record.id] = PluginProcess(record.source, self._sandbox)
        try:
            return await process.call(input)
        except (PluginCrashed, CallTimeout) as error:
            await self._note_crash(record, error)
            raise

    def _active(self, team: str, name: str, *, hash: str | None) -> PluginRecord:
        record = self.store.find(team, name)
        if record is None or record.state != "active":
            raise CallError(f"The plugin {team}.{name} is not active.")
        if hash not in (None, record.hash):
            raise CallError(f"The plugin {team}.{name} was replaced.", hint="Read its schema again.")
        return record

    async def _check_file(self, record: PluginRecord) -> None:
        """Raise CallError, and withdraw the approval, if the file is not what was approved."""
        path = self._files.path(record.team, file_name(record.name))
        if hash_of(await asyncio.to_thread(read_source_file, path)) != record.hash:
            reason = "its file was changed after it was approved"
            await self._fail(record, reason)
            raise CallError(f"The plugin {record.id} cannot be called: {reason}.", hint="Propose it again.")

    async def _note_crash(self, record: PluginRecord, error: DragomanError) -> None:
        crashes = self._crashes.setdefault(record.id, deque(maxlen=MAX_CRASHES))
        crashes.append(time.monotonic())
        if len(crashes) == MAX_CRASHES and crashes[-1] - crashes[0] < CRASH_SECONDS:
            reason = f"it failed {MAX_CRASHES} times in a row of minutes: {error.message}"
            await self._fail(record, reason)

    async def _fail(self, record: PluginRecord, reason: str) -> None:
        """Deactivate a plugin that is no longer verified, unless it was deactivated or replaced meanwhile."""
        async with self._changing:
            if self.store.find(record.team, record.name) == record:
                await self._retire(record, "failed_verification", reason=reason)

    async def _retire(self, record: PluginRecord, state: PluginState, *, reason: str) -> PluginRecord:
        """Store that a plugin is no longer active, and end its process. The caller holds `_changing`."""
        self._unregister(record.id)
        stored = await self.store.put(replace(record, state=state, reason=reason))
        await self._end(record.id)
        return stored

    def _unregister(self, id: str) -> None:
        """Remove the operation of a plugin; a sub-agent that has taken its place stays."""
        existing = find(self._registry, id)
        if existing is not None and is_plugin(existing):
            self._registry.remove(id)

    async def _end(self, id: str) -> None:
        """End the process of a plugin, and forget its crashes."""
        self._crashes.pop(id, None)
        process = self._processes.pop(id, None)
        if process is not None:
            await process.end()

    def _check_free(self, team: str, name: str, *, owner: str) -> None:
        """Raise Conflict if the id is taken, or the owner has too many plugins."""
        existing = self.store.find(team, name)
        if existing is not None and (existing.owner != owner or existing.state == "active"):
            raise Conflict(f"There is a plugin {team}.{name} already.", hint="Choose another name.")
        other = find(self._registry, f"{team}.{name}")
        if other is not None and not is_plugin(other):
            raise Conflict(f"There is an operation {team}.{name} already.", hint="Choose another name.")
        if existing is None and len(self.store.list(team, owner=owner)) >= MAX_PLUGINS:
            raise Conflict(f"The team {team!r} has {MAX_PLUGINS} plugins already.")

    def _register(self, record: PluginRecord) -> None:
        """Register an active plugin, for its owner alone."""

        async def run(input: Any, _: Context) -> Any:
            return await self.call(record.team, record.name, input=input, hash=record.hash)

        operation = Operation.from_schema(
            run,
            record.schema,
            namespace=record.team,
            name=record.name,
            description=record.description,
            effect=record.effect,
            effect_claimed=True,
            source=f"{SOURCE_PREFIX}{record.team}",
            provider=provider_of(record),
            owner=record.owner,
            private=True,
            timeout=VERIFY_SECONDS,
        )
        self._registry.add(operation)


async def run_tests(source: PluginSource, process: PluginProcess) -> None:
    """Run the tests of a plugin. Raises CallError for the first that fails."""
    for number, test in enumerate(source.tests):
        output = await process.call(test.input, seconds=TEST_SECONDS)
        if output != test.output:
            raise CallError(f"Test {number} failed: expected {test.output!r}, got {output!r}"[:500])


def is_plugin(operation: Operation) -> bool:
    """Return whether an operation is a plugin."""
    return operation.source.startswith(SOURCE_PREFIX)


def provider_of(record: PluginRecord) -> str:
    """Return what runs a plugin, as approvals name it."""
    return f"plugin:{record.hash}"


def file_name(name: str) -> str:
    """Return the path of a plugin's file in `generated/` of its team."""
    return f"plugins/{name}.py"


def read_source_file(path: Path) -> str:
    """Return the text of a plugin's file; an empty one if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def find(registry: Registry, id: str) -> Operation | None:
    """Return the operation of exactly this id, or None."""
    namespace = id.partition(".")[0]
    return next((each for each in registry.list(namespace) if each.id.lower() == id.lower()), None)


def denial(reason: str) -> Verdict:
    """Return the verdict on a plugin that a call may not use."""
    return Verdict("deny", Rule(decision="deny", reason=reason))

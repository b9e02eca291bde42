"""Commands of teams: in a sandbox that they cannot leave, within limits, and ended with all they started."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from dragoman.errors import CallError
from dragoman.identity import Identity
from dragoman.operations import Calls, Context, Registry
from dragoman.operations.ledger import MemoryLedger
from dragoman.operations.outcome import CallOutcome
from dragoman.operations.secret_handles import CallSecrets, VaultSecret
from dragoman.tools.shell import control_groups, sandbox
from dragoman.tools.shell.background import BackgroundCommands
from dragoman.tools.shell.command import ShellCommand, ShellProgram
from dragoman.tools.shell.operations import shell_operations
from dragoman.tools.shell.sandbox import Mount, Sandbox, SandboxLimits
from dragoman.tools.shell.workplace import Workplace
from tests.loop_clock import LoopClock
from tests.waiting import LIMIT, until

LIMITS = SandboxLimits(memory=200_000_000, processes=40, file_size=20_000_000)


def sandbox_works() -> bool:
    """Whether this machine lets bubblewrap make a sandbox: asked of bubblewrap itself, not of our code."""
    command = ["bwrap", "--unshare-user", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except FileNotFoundError:
        return False


WORKS = sandbox_works()


class OneWorkplace:
    """The same workplace for every caller."""

    def __init__(self, folder: Path, limits: SandboxLimits, sandbox: Sandbox | None) -> None:
        self.sandbox = sandbox
        self._mounts = [
            Mount("workspace", folder / "workspace", writable=True),
            Mount("rules", folder / "rules"),
        ]
        self._limits = limits

    async def workplace(self, context: Context) -> Workplace:
        if self.sandbox is not None:
            await self.sandbox.check()
        return Workplace(mounts=self._mounts, limits=self._limits, seconds=LIMIT, sandbox=self.sandbox)


class Shell:
    """The operations over a team's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.background = BackgroundCommands()
        self.limits = LIMITS
        self.sandbox: Sandbox | None = Sandbox()

    async def call(
        self,
        name: str,
        *,
        context: Context | None = None,
        on_progress: Any = None,
        secrets: CallSecrets | None = None,
        **input: Any,
    ) -> CallOutcome:
        workplaces = OneWorkplace(self.folder, self.limits, self.sandbox)
        registry = Registry(*shell_operations(workplaces, self.background))
        async with Calls(registry, MemoryLedger()) as calls:
            if secrets is not None:
                calls.secrets = lambda _: asyncio.sleep(0, secrets)
            return await calls.call(
                f"shell.{name}", input, context=context or Context(), on_progress=on_progress
            )

    async def run(self, command: str, **input: Any) -> dict[str, Any] | None:
        """The result of a command; None where nothing can be sandboxed: then it was refused, and not run."""
        outcome = await self.call("run", command=command, **input)
        if not WORKS:
            assert outcome.error is not None
            assert "Commands cannot run here" in outcome.error.message
            assert not list(self.workspace.iterdir())
            return None
        result: dict[str, Any] = outcome.unwrap()
        return result


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    for name in ("workspace", "rules"):
        (tmp_path / "team" / name).mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("outside")
    (tmp_path / "team" / "rules" / "rule.md").write_text("Be kind.")
    made = Shell(tmp_path / "team")
    yield made
    await made.background.close()


def processes_with(text: str) -> list[int]:
    """The processes of this machine with a text in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


async def test_a_command_runs_in_the_workspace_with_an_environment_of_its_own(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    result = await shell.run("pwd; env; cat /proc/*/environ; echo x > made; echo oops >&2; exit 3")
    if result is None:
        return
    assert (result["end"], result["exit_code"], result["id"]) == ("exited", 3, None)
    assert result["output"].startswith("/team/workspace\n")
    assert "oops" in result["output"]
    assert "secret" not in result["output"]
    assert (shell.workspace / "made").read_text() == "x\n"


async def test_shell_escapes_by_files_find_nothing_to_read_or_write(shell: Shell) -> None:
    outside = shell.folder.parent / "secret.txt"
    attempts = [
        f"cat {outside}",
        f"cat /proc/1/root{outside}",
        f"ln -s {outside} link; cat link",
        "ln /team/rules/rule.md hard && echo broken > hard",
        "echo broken > /team/rules/rule.md",
        "echo broken > /usr/bin/true",
        "touch /etc/x",
        "touch /team/x",
        "mount -t tmpfs none /mnt",
        "unshare -U -m true",
        "mknod disk b 8 0 && dd if=disk of=x count=1",
        "cat /dev/mem",
        "cat /etc/shadow",
        "chroot / true",
        "nsenter -t 1 -m true",
    ]
    script = "\n".join(
        f"({attempt}) >/dev/null 2>&1 && echo escaped {n}" for n, attempt in enumerate(attempts)
    )
    result = await shell.run(f"{script}\necho done")
    if result is None:
        return
    assert result["output"] == "done\n"
    assert outside.read_text() == "outside"
    assert (shell.folder / "rules" / "rule.md").read_text() == "Be kind."


async def test_a_command_has_no_network_unless_it_is_allowed(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]} && echo reached"
        for network in (False, True):
            shell.limits = msgspec.structs.replace(LIMITS, network=network)
            result = await shell.run(f"bash -c '{connect}' 2>&1")
            if result is not None:
                assert ("reached" in result["output"]) is network, result


async def test_a_command_neither_sees_nor_ends_processes_of_others(shell: Shell) -> None:
    pids = " ".join(str(pid) for pid in (os.getpid(), os.getppid()))
    result = await shell.run(f"kill -9 {pids} -1 2>/dev/null; ls -d /proc/[0-9]* | wc -l")
    if result is not None:
        assert int(result["output"] or 0) <= 6


async def test_a_fork_bomb_is_bounded_and_ends_with_its_command(shell: Shell) -> None:
    mark = f"bomb-{os.getpid()}"
    shell.limits = msgspec.structs.replace(LIMITS, processes=30)
    bomb = f"b() {{ b | b & }}; b; : {mark}; sleep 30"
    clock = LoopClock()
    call = asyncio.create_task(shell.run(bomb, seconds=60))
    await until(lambda: call.done() or processes_with(mark))
    most = 0
    for _ in range(20):
        most = max(most, len(processes_with(mark)))
        await asyncio.sleep(0.05)
    clock.set_ahead(60)
    result = await call
    if result is not None:
        assert result["end"] in ("timeout", "exited")
        assert 1 <= most <= 40
    assert not processes_with(mark)


async def test_an_output_without_end_is_cut_off_and_shown_in_part(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await shell.run("seq 1 100000")
    if result is None:
        return
    assert result["output"].startswith("1\n2\n")
    assert result["output"].endswith("100000\n")
    assert result["left_out"] == 588_895 - 30_000
    monkeypatch.setattr("dragoman.tools.shell.command.MAX_OUTPUT", 2_000_000)
    ended = await shell.call("run", command="yes | head -c 1000000000")
    assert ended.error is not None
    assert "was ended after" in ended.error.message


async def test_memory_and_file_sizes_are_limited(shell: Shell) -> None:
    shell.limits = msgspec.structs.replace(LIMITS, memory=50_000_000, file_size=1_000_000)
    big = "head -c 200000000 /dev/zero | tail -c 200000000 | wc -c"
    result = await shell.run(
        f"{big}; head -c 5000000 /dev/zero > big; stat -c %s big; head -c 90000000 /dev/zero > /tmp/x"
    )
    if result is None:
        return
    assert "200000000" not in result["output"]
    assert (shell.workspace / "big").stat().st_size <= 1_000_000


async def test_a_command_that_fills_the_disk_is_ended_before_it_is_full(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(free=10**9)

    def disk_usage(folder: Path) -> SimpleNamespace:
        written = sum(each.stat().st_size for each in folder.iterdir())
        return SimpleNamespace(free=disk.free - written)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    script = "n=0; while n=$((n+1)); do head -c 1000000 /dev/zero >f$n; sleep 0.01; done"
    outcome = await shell.call("run", command=script)
    if not WORKS:
        return
    assert outcome.error is not None
    assert "less than 1 GB of the workspace's disk were free" in outcome.error.message
    assert 50 <= len(list(shell.workspace.iterdir())) < 5_000
    small = await shell.run("echo small >g")
    assert small is not None
    assert small["end"] == "exited"


async def test_a_command_sees_nothing_of_a_hub_that_is_installed_among_the_systems_programs(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = shell.folder.parent / "opt"
    teams = system / "hub" / "data" / "teams"
    teams.mkdir(parents=True)
    (system / "program").write_text("a program")
    configuration, key = system / "dragoman.yaml", teams.parent / "hub.key"
    for file in (configuration, key, teams / "team.yaml"):
        file.write_text("hidden")
    monkeypatch.setattr(sandbox, "SYSTEM_FOLDERS", (*sandbox.SYSTEM_FOLDERS, str(system)))
    hidden = [teams, teams.parent, configuration, system / "missing", shell.folder / "rules"]
    shell.sandbox = Sandbox(hidden=hidden)
    script = (
        f"cat {system}/program {configuration} {key} {teams}/*; ls -A {teams.parent}; cat ../rules/rule.md"
    )
    result = await shell.run(script)
    if result is not None:
        assert "a program" in result["output"]
        assert "hidden" not in result["output"]
        assert "Be kind." in result["output"]


async def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(shell: Shell) -> None:
    mark = f"late-{os.getpid()}"
    clock = LoopClock()

    def report(_: Any) -> None:  # it has begun
        clock.set_ahead(60)

    command = f"setsid sh -c ': {mark}; sleep 1000' & echo begun; wait"
    result = await shell.run(command, seconds=60, on_progress=report)
    if result is not None:
        assert (result["end"], result["exit_code"]) == ("timeout", None)
        assert result["output"] == "begun\n"
    assert not processes_with(mark)


async def test_the_halves_of_a_secret_where_an_output_is_cut_are_not_shown(shell: Shell) -> None:
    secrets = CallSecrets([VaultSecret("pin", "tok-5f1e9a-live-87c2", lambda _: True, "shell.*", ("*",))])
    zeros = "head -c {} /dev/zero | tr '\\0' {}"
    for cut in (14_990, 14_988):
        command = f"{zeros.format(cut, 'x')}; printf %s secret:pin; {zeros.format(30_000 - cut, 'y')}"
        result = (await shell.call("run", command=command, secrets=secrets)).result if WORKS else None
        if result is not None:
            assert result["left_out"] == 20
            assert not any(part in result["output"] for part in ("tok-5", "f1e9", "live", "87c2"))
    accents = await shell.run("printf x; printf 'é%.0s' $(seq 8000)")
    assert accents is None or accents["output"] == "x" + "é" * 8_000


async def test_what_a_command_needed_is_released_though_its_end_is_cancelled_as_well(tmp_path: Path) -> None:
    released: list[bool] = []
    spec = ShellProgram(["/bin/sleep", "600"], str(tmp_path), {}, on_end=lambda: released.append(True))
    command = await ShellCommand.start(spec)
    task = asyncio.create_task(command.run(LIMIT))
    await asyncio.sleep(0)
    task.cancel()
    await until(lambda: command.end == "stopped")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: released == [True])


async def test_output_is_reported_as_progress_while_a_command_runs(shell: Shell) -> None:
    gate, seen = shell.workspace / "gate", list[Any]()
    if WORKS:
        os.mkfifo(gate)

    def report(value: Any) -> None:
        seen.append((value["output"], value["end"]))
        if len(seen) == 1:  # the command goes on only after it was heard of
            os.close(os.open(gate, os.O_WRONLY))

    if await shell.run("echo one; cat gate; echo two", on_progress=report) is not None:
        assert seen[0] == ("one\n", None)


async def test_a_background_command_is_read_by_its_caller_alone_and_ends_with_its_run(shell: Shell) -> None:
    mine = Context(run_id="run_1", agent="main")
    mark = f"behind-{os.getpid()}"
    begun = await shell.run(f": {mark}; echo ready; sleep 1000", in_background=True, context=mine)
    if begun is None:
        return
    id = begun["id"]
    for other in (
        Context(run_id="run_1", agent="other"),
        Context(run_id="run_1", agent="main", identity=Identity(key_id="k", owner="eve")),
    ):
        for name in ("poll", "stop"):
            refused = await shell.call(name, id=id, context=other)
            assert refused.error is not None
            assert refused.error.code == "not_found"
    await shell.background.end_run("run_2")
    polled = begun
    while not polled["output"]:
        polled = (await shell.call("poll", id=id, seconds=0.05, context=mine)).unwrap()
    assert (polled["end"], polled["output"]) == (None, "ready\n")
    await shell.background.end_run("run_1")
    assert not processes_with(mark)
    assert (await shell.call("poll", id=id, context=mine)).unwrap()["end"] == "stopped"


async def test_background_commands_of_one_caller_are_limited(shell: Shell) -> None:
    if await shell.run("true") is None:
        return
    many = [shell.call("run", command="sleep 1000", in_background=True) for _ in range(10)]
    many += [shell.call("run", command="sleep 1000", in_background=True)]
    errors = [each.error.code for each in await asyncio.gather(*many) if each.error is not None]
    assert errors == ["rate_limit_exceeded"] * 3


async def test_commands_of_one_caller_take_turns_beyond_a_number(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dragoman.tools.shell.operations.MAX_RUNNING", 2)
    registry = Registry(*shell_operations(OneWorkplace(shell.folder, LIMITS, None), shell.background))
    command = "touch $$.began; until [ -e go ]; do sleep 0.01; done; set -- *.began; echo $#; rm $$.began"
    async with Calls(registry, MemoryLedger()) as calls:
        running = [
            asyncio.ensure_future(calls.call("shell.run", {"command": command}, context=Context()))
            for _ in range(5)
        ]
        await until(lambda: len(list(shell.workspace.glob("*.began"))) == 2)
        (shell.workspace / "go").touch()
        numbers = [int((await each).unwrap()["output"]) for each in running]
    assert max(numbers) == 2


async def test_without_bubblewrap_commands_are_refused_unless_that_is_configured(shell: Shell) -> None:
    for broken in ("/nonexistent/bwrap", "/bin/false"):
        shell.sandbox = Sandbox(broken)
        refused = await shell.call("run", command="touch made")
        assert refused.error is not None
        assert "shell: unsafe" in (refused.error.hint or "")
    assert not (shell.workspace / "made").exists()
    shell.sandbox = None
    outcome = await shell.call("run", command="touch made; pwd")
    assert outcome.unwrap()["output"] == f"{shell.workspace}\n"


async def test_root_without_control_groups_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "OWN_GROUPS", Path("/nonexistent"))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    sandbox = Sandbox("/usr/bin/bwrap")
    with pytest.raises(CallError, match="control groups"):
        sandbox.program(["true"], mounts=[], limits=LIMITS)


SET_BITS = """
import ctypes, errno, os, stat
libc = ctypes.CDLL(None, use_errno=True)

def shown(name, attempt):
    try:
        attempt()
        print(name, "allowed")
    except OSError as error:
        print(name, errno.errorcode[error.errno])

def system_call(number, *arguments):
    if libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

open("plain", "w").close()
os.mkdir("folder")
file, here = os.open("plain", os.O_RDONLY), os.open(".", os.O_RDONLY)
for mode in (0o4755, 0o2755):
    shown("chmod", lambda: os.chmod("plain", mode))
    shown("fchmod", lambda: os.chmod(file, mode))
    shown("fchmodat", lambda: os.chmod("plain", mode, dir_fd=here))
    shown("fchmodat2", lambda: system_call(452, -100, b"plain", mode, 0))
    shown("open", lambda: os.open("new", os.O_CREAT | os.O_WRONLY, mode))
    shown("tmpfile", lambda: os.open(".", os.O_TMPFILE | os.O_WRONLY, mode))
    shown("mknod", lambda: os.mknod("node", stat.S_IFREG | mode))
    shown("folder", lambda: os.chmod("folder", mode))
capability = bytes.fromhex("0000000201" + "00" * 15)
shown("capability", lambda: os.setxattr("plain", "security.capability", capability))
shown("openat2", lambda: system_call(437, -100, b"plain", None, 0))
shown("io_uring", lambda: system_call(425, 1, None))
shown("sticky", lambda: os.chmod("plain", 0o1755))
shown("reading", lambda: os.open("plain", os.O_RDONLY, 0o4755))
"""


async def test_a_command_sets_no_bit_that_lends_others_the_rights_of_the_hubs_user(shell: Shell) -> None:
    (shell.workspace / "bits.py").write_text(SET_BITS)
    tools = "chmod u+s plain; cp -p plain copy; install -m 6755 plain third; mkdir -m 2755 made"
    result = await shell.run(f"python3 bits.py; ({tools}) 2>/dev/null")
    if result is None:
        return
    ways = "chmod fchmod fchmodat fchmodat2 open tmpfile mknod folder"
    refused = [f"{name} EPERM" for name in [*ways.split(), *ways.split(), "capability"]]
    lacking = ["openat2 ENOSYS", "io_uring ENOSYS"]
    assert result["output"].splitlines() == [*refused, *lacking, "sticky allowed", "reading allowed"]
    modes = {path.name: path.lstat().st_mode for path in shell.workspace.iterdir()}
    assert [name for name, mode in modes.items() if mode & 0o6000] == []


@pytest.mark.parametrize("command", ["git init --shared repository", "mkdir folder; chmod g+s folder"])
async def test_a_refused_bit_of_a_folder_is_explained(shell: Shell, command: str) -> None:
    result = await shell.run(command)
    if result is not None:
        assert result["exit_code"] != 0
        assert "--shared" in result["hint"]
        assert "hint" not in (await shell.run("exit 3") or {"hint": "that of another failure"})


async def test_a_machine_whose_system_calls_are_not_known_runs_no_command() -> None:
    with pytest.raises(CallError, match="the system calls of mips64"):
        await Sandbox(machine="mips64").check()

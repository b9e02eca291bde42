"""Measures teams: what an idle hub takes, what delegating takes, and tasks beside CrewAI and Agno.

tests
  idle       a hub with 100 teams and 1,000 active triggers: its share of a core
  delegate   a task given with `teams.delegate`, less the same answer as a chat in the background
  stop       how long after a stop of the root all below it have ended
  peers      one manager that asks three members, then answers: tasks per CPU-second of the process that does
             them. Ours is a hub with its database, asked over HTTP; the peers run in a process of their own
             and store nothing. A scripted model answers all of them over HTTP, in another process.

Absolute figures change with the machine; only the ratios inside one run say something. Peers are installed
from their lock file when they are first needed; one that cannot be installed is listed as ABSENT.

examples
  python benchmarks/teams.py                       everything, about three minutes
  python benchmarks/teams.py --only idle,delegate
  python benchmarks/teams.py --seconds 5           a look
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # as a script, too

from benchmarks.harness.build import HERE, Absent, install, is_newer
from benchmarks.libraries.peers import PEER_PYTHON, install_peers
from benchmarks.peers.teams.model_server import DONE, HANGS, MEMBERS

CREWAI = HERE / "peers" / "teams"
PYTHONS: dict[str, Path] = {}
"""Interpreters that have the peers, by name, if the command line says so."""
TICKS = os.sysconf("SC_CLK_TCK")
TESTS = ("idle", "delegate", "stop", "peers")
IDLE_TEAMS, IDLE_TRIGGERS = 100, 1_000
WARM = 20
Json = dict[str, Any]


class Hub:
    """A hub in a process of its own, and a connection to it."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return the JSON of its response."""
        headers = {"content-type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = self._connection.getresponse()
        raw = response.read()
        assert response.status < 400, f"{method} {path}: {response.status} {raw[:500]!r}"
        return json.loads(raw) if raw else None

    @contextmanager
    def events(self, names: str) -> Iterator[Iterator[Json]]:
        """What happens in the hub from now on."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request("GET", f"/api/events?name={names}")
        response = connection.getresponse()
        response.readline()  # the comment that says that it follows
        try:
            yield (json.loads(line[6:]) for line in iter(response.readline, b"") if line[:6] == b"data: ")
        finally:
            connection.close()

    @property
    def cpu(self) -> float:
        """The seconds of CPU that the process has taken."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def model_server() -> Iterator[str]:
    """A scripted model in a process of its own; its URL."""
    command = [sys.executable, "-m", "benchmarks.peers.teams.model_server"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.terminate()


@contextmanager
def hub(url: str, teams: Mapping[str, Json]) -> Iterator[Hub]:
    """A hub with these teams."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        for team, fields in teams.items():
            (folder / "teams" / team).mkdir(parents=True)
            (folder / "teams" / team / "team.yaml").write_text(json.dumps(fields))
        up = {"type": "openai", "base_url": url, "api_key_env": "UP_KEY"}
        config = {"providers": {"up": up}, "model": "up/member", "teams": str(folder / "teams")}
        config["limits"] = {"background_runs": 64}
        (folder / "dragoman.yaml").write_text(json.dumps(config))
        command = [sys.executable, "-m", "dragoman", "serve", "--no-auth", "--port", "0"]
        command += ["--config", str(folder / "dragoman.yaml"), "--data", str(folder / "data")]
        with (folder / "log").open("w+") as log:
            environment = {**os.environ, "UP_KEY": "x"}
            process = subprocess.Popen(command, stderr=log, stdout=log, text=True, env=environment)
            try:
                yield Hub(process, listening_port(folder / "log", process))
            finally:
                process.terminate()
                process.wait(30)


def listening_port(log: Path, process: subprocess.Popen[str]) -> int:
    """The port that a hub says it listens on."""
    while process.poll() is None:
        text = log.read_text()
        if "listening on http://127.0.0.1:" in text:
            return int(text.partition("listening on http://127.0.0.1:")[2].split()[0].strip('",'))
        time.sleep(0.05)
    raise Absent(f"the hub did not start: {log.read_text()[-500:]}")


def measure_idle(url: str, seconds: float) -> Sequence[str]:
    """What a hub with many teams and triggers takes while nothing happens."""
    teams = {f"team{number}": {"description": "Waits."} for number in range(IDLE_TEAMS)}
    kinds: Sequence[Json] = [
        {"type": "schedule", "config": {"cron": "30 2 1 1 *"}},
        {"type": "window", "config": {"during": "* 3 1 1 *", "tick": "30s"}},
        {"type": "webhook", "config": {}},
        {"type": "keyword", "config": {"keywords": ["tea"]}},
        {"type": "file", "config": {"path": "*.csv"}},
    ]
    with hub(url, teams) as served:
        for number in range(IDLE_TRIGGERS):
            body = {"team": f"team{number % IDLE_TEAMS}", "name": f"t{number}", "task": "Look."}
            trigger = served.ask("POST", "/api/triggers", body | kinds[number % len(kinds)])
            served.ask("POST", f"/api/triggers/{trigger['id']}/enable")
        time.sleep(5)
        began, used = time.perf_counter(), served.cpu
        time.sleep(seconds)
        share = (served.cpu - used) / (time.perf_counter() - began)
    return [f"idle: {IDLE_TEAMS} teams, {IDLE_TRIGGERS} triggers: {100 * share:.2f} % of a core"]


def measure_delegate(url: str, seconds: float) -> Sequence[str]:
    """What a task takes beyond its run, in CPU of the hub."""
    with hub(url, {"press": {"concurrency": 64}}) as served:
        costs: dict[str, list[float]] = {"chat": [], "task": []}
        for _ in range(max(2, int(seconds / 5))):
            costs["chat"].append(cost_of(served, give_chat, ended="run.ended"))
            costs["task"].append(cost_of(served, give_task, ended="task.ended"))
    chat, task = (1e3 * min(costs[kind][1:]) for kind in ("chat", "task"))
    figures = f"{task:.2f} ms CPU a task, {chat:.2f} ms the same answer as a chat"
    return [f"delegate: {figures}: {task - chat:.2f} ms for delegating"]


def cost_of(served: Hub, give: Any, *, ended: str, count: int = 200, at_once: int = 20) -> float:
    """The CPU of the hub for one piece of work, of so many."""
    number = time.time_ns()
    with served.events(ended) as events:
        used = served.cpu
        for first in range(0, count, at_once):
            for each in range(first, first + at_once):
                give(served, number + each)
            for _ in range(at_once):
                event = next(events)
                assert event["data"].get("state", "done") == "done", event
        return (served.cpu - used) / count


def give_chat(served: Hub, number: int) -> None:
    """A chat in the background, in a session of its own."""
    parts = [{"type": "text", "text": f"Write one sentence on tea, {number}."}]
    message = {"id": f"m{number}", "role": "user", "parts": parts}
    body = {"id": f"s{number}", "messages": [message], "agent": "press", "background": True}
    served.ask("POST", "/api/chat", body)


def give_task(served: Hub, number: int) -> None:
    """The same, delegated."""
    body = {"team": "press", "task": f"Write one sentence on tea, {number}.", "overlap": "allow"}
    served.ask("POST", "/api/operations/teams.delegate/call", body)


def press_teams() -> Mapping[str, Json]:
    """A manager with three members."""
    members: dict[str, Json] = {name: {"description": "Writes.", "model": "up/member"} for name in MEMBERS}
    manager = {"members": list(MEMBERS), "allowed_tools": ["teams.ask"], "model": "up/manager-dragoman"}
    return {**members, "manager": {**manager, "concurrency": 8}}


def measure_peers(url: str, seconds: float) -> Sequence[str]:
    """Tasks of a manager with three members, beside the peers."""
    rates: dict[str, float] = {}
    lines: list[str] = []
    with hub(url, press_teams()) as served:
        give_many(served, WARM)
        began, used, count = time.perf_counter(), served.cpu, 0
        while time.perf_counter() - began < seconds:
            count += give_many(served, WARM)
        rates["Dragoman"] = count / (served.cpu - used)
    for name, find in (("Agno", agno_python), ("CrewAI", crewai_python)):
        try:
            rates[name] = peer_rate(name, PYTHONS.get(name) or find(), url=url, seconds=seconds)
        except Absent as reason:
            lines.append(f"peers: {name} ABSENT: {reason}")
    ours = rates["Dragoman"]
    for name, rate in rates.items():
        ratio = "" if name == "Dragoman" else f" (ours × {ours / rate:.1f})"
        lines.append(f"peers: {name}: {rate:.1f} tasks per CPU-second{ratio}")
    return lines


def give_many(served: Hub, count: int) -> int:
    """Have the manager do so many tasks, four at a time."""
    with served.events("task.ended") as events:
        waiting, submitted = 0, 0
        while submitted < count or waiting:
            while submitted < count and waiting < 4:
                task = {"team": "manager", "task": "Have the members write."}
                served.ask("POST", "/api/tasks", task)
                waiting, submitted = waiting + 1, submitted + 1
            event = next(events)
            if event["data"]["team"] == "manager":
                assert event["data"]["state"] == "done", event
                waiting -= 1
        last = served.ask("GET", "/api/tasks?team=manager&limit=1")["tasks"][0]
        assert last["result"] == DONE, last
    return count


def peer_rate(name: str, python: Path, *, url: str, seconds: float) -> float:
    """The tasks per CPU-second of a peer; `Absent` when it cannot be used."""
    module = f"benchmarks.peers.teams.with_{name.lower()}"
    quiet = {"AGNO_TELEMETRY": "false", "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    quiet |= {"CREWAI_TRACING_ENABLED": "false", "CREWAI_TESTING": "true"}
    command = [str(python), "-m", "benchmarks.peers.teams.worker", module, url, str(seconds)]
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        environment = {**os.environ, **quiet, "HOME": home, "PYTHONPATH": str(HERE.parent)}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=600, env=environment
        )
    if done.returncode:
        raise Absent((done.stderr.strip().splitlines() or ["it failed"])[-1])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return float(found["tasks"] / found["cpu"])


def crewai_python() -> Path:
    """The interpreter that has CrewAI, once it is installed; `Absent` without a lock file."""
    lock, done = CREWAI / "requirements.txt", CREWAI / ".venv" / "installed"
    python = CREWAI / ".venv" / "bin" / "python"
    if not lock.exists():
        raise Absent("it is not installed; name an environment that has it with --crewai DIR/bin/python")
    if not is_newer(done, [lock]):
        install([sys.executable, "-m", "venv", "--clear", str(CREWAI / ".venv")], cwd=CREWAI)
        install([str(python), "-m", "pip", "install", "-q", "--require-hashes", "-r", str(lock)], cwd=CREWAI)
        done.touch()
    return python


def agno_python() -> Path:
    """The interpreter that has Agno, once it is installed."""
    install_peers()
    return PEER_PYTHON


def measure_stop(url: str, seconds: float) -> Sequence[str]:
    """How long after a stop of the root the last run below it is stopped: a chain of three, ten times."""
    names = ("a", "b", "c", "d")
    teams: dict[str, Json] = {
        name: {"members": [below], "allowed_tools": ["teams.ask"], "model": f"up/chain-{below}"}
        for name, below in pairwise(names)
    }
    with hub(url, {**teams, "d": {"model": f"up/{HANGS}"}}) as served:
        taken = [stop_once(served, number) for number in range(max(3, int(seconds / 3)))]
    taken.sort()
    median, worst = 1e3 * taken[len(taken) // 2], 1e3 * taken[-1]
    return [f"stop: four nested runs stopped after {median:.0f} ms (median), {worst:.0f} ms (worst)"]


def stop_once(served: Hub, number: int) -> float:
    """The seconds from the request to stop the root of four runs to the end of the last of them."""
    message = {"id": f"m{number}", "role": "user", "parts": [{"type": "text", "text": f"Go {number}."}]}
    body = {"id": f"stop{number}", "messages": [message], "agent": "a", "background": True}
    with served.events("run.") as events:
        served.ask("POST", "/api/chat", body)
        while next(events)["data"].get("agent") != "d":
            pass
        began = time.perf_counter()
        served.ask("POST", f"/api/chat/stop{number}/stop")
        ended = 0
        while ended < 4:
            event = next(events)
            if event["name"] == "run.ended":
                assert event["data"]["status"] == "stopped", event
                ended += 1
        return time.perf_counter() - began


def main() -> None:
    """Run what the command line asks for, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(TESTS), help="tests, with commas between")
    parser.add_argument("--seconds", type=float, default=30.0, help="for how long each is measured")
    for name in ("agno", "crewai"):
        parser.add_argument(
            f"--{name}", type=Path, help="an interpreter that has it, instead of installing it"
        )
    options = parser.parse_args()
    chosen = {"Agno": options.agno, "CrewAI": options.crewai}
    PYTHONS.update({name: python for name, python in chosen.items() if python is not None})
    measures = {
        "idle": measure_idle,
        "delegate": measure_delegate,
        "stop": measure_stop,
        "peers": measure_peers,
    }
    with model_server() as url:
        for name in options.only.split(","):
            for line in measures[name](url, options.seconds):
                print(line, flush=True)


if __name__ == "__main__":
    main()

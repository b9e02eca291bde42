"""Fixtures of all tests: profiles, the CPU budget, and cleanup on Ctrl-C.

`TEST_PROFILE=quick`, the default, is `make test`: few examples of each property, few rounds of each loop, and
processes that are forked. `thorough` is `make soak`: many of both, and programs that are loaded anew.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.captured_logs import find_loggers
from tests.certificates import trust_no_certificates
from tests.collected_tests import take_over
from tests.effort import PROFILE
from tests.loaded_workers import LoadedWorkers
from tests.rewriting import rewrite_assertions
from tests.zygote import HOSTS, Zygote

settings.register_profile(
    "quick", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", parent=settings.get_profile("quick"), max_examples=500)
settings.load_profile(PROFILE)

CPU = pytest.StashKey[list[float]]()
ZYGOTE = pytest.StashKey[Zygote]()
WORKERS = pytest.StashKey[LoadedWorkers]()
STARTED = time.monotonic()
GC_THRESHOLDS = (10_000, 1, 2_500)  # as of `dragoman serve`


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("cpu_budget", "CPU seconds that the quick profile may take, children included")
    choices = ("sqlite", "postgres")
    parser.addoption("--database", choices=choices, default="sqlite", help="of the hubs and stores of tests")
    parser.addoption(
        "--hosts", type=int, default=1, help="processes of a hub in tests/clients, on one Postgres"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Hear SIGINT again where a shell had it ignored, as it has for what it runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    trust_no_certificates(config.rootpath / "tests")
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        gc.disable()  # until all tests are collected: a fifth of the time went into looking for garbage
    # DBOS is one a process, and takes its time. Hubs of a test share this process, and queue in memory.
    sys.modules["dbos"] = None  # type: ignore[assignment]
    sys.modules.pop(HOSTS, None)  # what needs it: a worker may be forked from a process that has both
    config.stash[CPU] = []
    config.stash[ZYGOTE] = zygote = Zygote()
    if PROFILE == "quick" and not config.getoption("cov_source", None):
        zygote.install()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Do once what each worker would do."""
    rewrite_assertions(config, config.rootpath / "tests")
    if PROFILE == "quick" and not config.getoption("cov_source", None):
        config.stash[WORKERS] = workers = LoadedWorkers(config.invocation_params.args)
        workers.install()


def pytest_runtest_teardown() -> None:
    """Undo what a command in this process has set: `--log-level`, and `serve` the garbage collector."""
    root = logging.getLogger()
    if root.level != logging.WARNING:  # setting it makes all loggers forget what they have computed
        root.setLevel(logging.WARNING)
    gc.enable()


def pytest_collection(session: pytest.Session) -> bool | None:
    """Collect nothing in a process that is forked from one that has done it."""
    return take_over(session) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the options leave out.

    On Postgres alone these are the tests of the SQLite file, and those that choose SQLite themselves; without
    `--hosts` those marked `several_hosts`, and in the quick profile those marked `thorough`.
    """
    if PROFILE == "quick":
        left_out = [item for item in items if item.get_closest_marker("thorough") is not None]
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]
        config.hook.pytest_deselected(items=left_out)
    if config.getoption("--hosts") == 1:
        left_out = [item for item in items if item.get_closest_marker("several_hosts") is not None]
        items[:] = [item for item in items if item.get_closest_marker("several_hosts") is None]
        config.hook.pytest_deselected(items=left_out)
    if config.getoption("--database") == "postgres":
        left_out = [item for item in items if is_about_sqlite(item)]
        items[:] = [item for item in items if not is_about_sqlite(item)]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Leave what all tests share to itself: a test that collects garbage takes a second otherwise.

    Garbage of the collection stays as well: it costs less memory than the look for it costs time.
    """
    find_loggers()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def is_about_sqlite(item: pytest.Item) -> bool:
    """Whether a test needs the SQLite file, or is the half of a test of both databases that uses it."""
    chosen = getattr(item, "callspec", None)
    is_half = chosen is not None and "sqlite" in (chosen.params.get("place"), chosen.params.get("database"))
    return is_half or item.get_closest_marker("sqlite_file") is not None


@pytest.fixture(scope="session")
def folder_schemas() -> Iterator[Any]:
    """The schemas of data folders, while hubs and stores without the URL of a database use Postgres."""
    from tests.databases import FolderSchemas  # late: imports the store, which many tests do not need

    schemas = FolderSchemas()
    with schemas.installed():
        yield schemas


@pytest.fixture(autouse=True)
def database(request: pytest.FixtureRequest) -> Iterator[str]:
    """The database that hubs and stores use: of `--database`, or of a test that is parametrised with it."""
    name: str = getattr(request, "param", request.config.getoption("--database"))
    if name == "sqlite":
        yield name
    elif request.config.getoption("--database") == "postgres":
        schemas, folder = request.getfixturevalue("folder_schemas"), request.getfixturevalue("tmp_path")
        yield name
        schemas.release(folder)
    else:
        from tests.databases import FolderSchemas

        with FolderSchemas().installed():
            yield name


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End what all tests shared; a worker reports what it and the processes it waited for have used."""
    if WORKERS in session.config.stash:
        session.config.stash[CPU].append(session.config.stash[WORKERS].close())
    session.config.stash[ZYGOTE].close()
    if "tests.postgres_server" in sys.modules:  # imports a driver that most tests do not need
        sys.modules["tests.postgres_server"].close_shared_server()
    if "tests.clients.driver" in sys.modules:
        sys.modules["tests.clients.driver"].close_players()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["cpu"] = cpu_seconds()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The process that started the workers adds up what they report."""
    node.config.stash[CPU].append(getattr(node, "workeroutput", {}).get("cpu", 0.0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    workers = config.stash[CPU]
    own = os.times()
    used = sum(workers, own.user + own.system) if workers else cpu_seconds()
    minutes = (time.monotonic() - STARTED) / 60
    cost = f"{minutes:.1f} minutes, {used:.0f} CPU seconds"
    budget = float(config.getini("cpu_budget") or "inf")
    if PROFILE != "quick":
        terminalreporter.write_line(f"{cost}, profile {PROFILE}")
    elif used <= budget:
        terminalreporter.write_line(f"{cost} of a budget of {budget:.0f}")
    else:
        terminalreporter.write_line(f"WARNING: {cost}, over the budget of {budget:.0f}", yellow=True)


def cpu_seconds() -> float:
    """What this process has used so far, and the processes that it started and waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system

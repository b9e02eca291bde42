"""Fixtures of all tests: profiles, the CPU budget, and cleanup on Ctrl-C.

`TEST_PROFILE=quick`, the default, is `make test`: few examples of each property, few rounds of each loop, and
programs that are forked. `thorough` is `make soak`: many of both, and programs that are loaded anew.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import PROFILE
from tests.zygote import Zygote

settings.register_profile(
    "quick", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", parent=settings.get_profile("quick"), max_examples=500)
settings.load_profile(PROFILE)

CPU = pytest.StashKey[list[float]]()
ZYGOTE = pytest.StashKey[Zygote]()
STARTED = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("cpu_budget", "CPU seconds that the quick profile may take, children included")


def pytest_configure(config: pytest.Config) -> None:
    """Hear SIGINT again where a shell had it ignored, as it has for what it runs in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[CPU] = []
    config.stash[ZYGOTE] = zygote = Zygote()
    if PROFILE == "quick" and not config.getoption("cov_source", None):
        zygote.install()


def pytest_runtest_teardown() -> None:
    """Undo what a command in this process has set with `--log-level`: later tests read warnings."""
    logging.getLogger().setLevel(logging.WARNING)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[ZYGOTE].close()
    if "tests.postgres_server" in sys.modules:  # imports a driver that most tests do not need
        sys.modules["tests.postgres_server"].close_shared_server()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker reports what it and the processes it waited for have used."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["cpu"] = cpu_seconds()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """The process that started the workers adds up what they report."""
    node.config.stash[CPU].append(getattr(node, "workeroutput", {}).get("cpu", 0.0))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    workers = config.stash[CPU]
    used = sum(workers) if workers else cpu_seconds()
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

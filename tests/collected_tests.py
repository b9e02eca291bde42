"""Hands the tests that one process has collected to the processes that are forked from it.

Each of them would collect them for itself otherwise, 5 s of processor time, although the modules are loaded.
"""

from __future__ import annotations

import pytest

collected: list[pytest.Session] = []  # one, where tests/loaded_workers.py has collected without an error


class Keeper:
    """A plugin of pytest that keeps the tests of a session that collects them without an error."""

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK:
            collected.append(session)


def take_over(session: pytest.Session) -> bool:
    """Give a session the tests that are collected already; return whether there are any.

    They stay nodes of the session that collected them, which from now on has the other's configuration.
    """
    if not collected:
        return False
    source, config = collected[0], session.config
    for folder in source.config.pluginmanager._dirpath2confmods:
        config.pluginmanager._loadconftestmodules(
            folder, config.getoption("importmode"), config.rootpath, consider_namespace_packages=False
        )
    for item in source.items:
        for node in item.iter_parents():
            if node.config is config:
                break
            node.config = config
    source._setupstate = session._setupstate
    source._fixturemanager.config = config
    session._fixturemanager = source._fixturemanager
    session.items = source.items
    session.testscollected = len(source.items)
    config.hook.pytest_collection_finish(session=session)
    return True

"""The AI SDK's client and three hosts on one Postgres: each request of a page lands on another one.

The tests are those of one hub; `pytest tests/clients --hosts 3` plays all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.clients.hub import Hub
from tests.clients.test_questions import (
    ASKING,
    ask,
    test_a_replay_of_a_decided_approval_is_valid_for_the_client,
)
from tests.clients.test_usechat_streams import (
    blocked,
    test_a_fresh_page_shows_finished_calls_without_firing_them_again,
    test_one_tab_s_stop_ends_the_run_for_the_other_too,
    test_two_tabs_follow_one_run_to_the_same_end,
)
from tests.clients.upstream import Upstream
from tests.hosts.cluster import start_cluster

__all__ = [
    "ask",
    "blocked",
    "test_a_fresh_page_shows_finished_calls_without_firing_them_again",
    "test_a_replay_of_a_decided_approval_is_valid_for_the_client",
    "test_one_tab_s_stop_ends_the_run_for_the_other_too",
    "test_two_tabs_follow_one_run_to_the_same_end",
]


@pytest.fixture(scope="module")
def hub(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """Three hosts behind a proxy, in place of the one hub."""
    up = {"type": "openai", "base_url": upstream.url, "api_key_env": "UP_KEY"}
    config = {"providers": {"up": up}, "model": "up/any-model", **ASKING}
    cluster = start_cluster(tmp_path_factory.mktemp("hosts"), config, count=3)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def asking_hub(hub: Hub) -> Hub:
    """The same hosts."""
    return hub

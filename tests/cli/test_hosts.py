"""`dragoman hosts` lists the processes of a hub and drains one."""

from __future__ import annotations

import msgspec
import pytest

from dragoman.cli.hosts import find_host
from dragoman.errors import BadRequest, NotFound
from tests.cli.conftest import Run
from tests.cli.program import Hub


def test_hosts_are_listed_in_eighty_columns_and_as_json(run: Run, hub: Hub) -> None:
    found = msgspec.json.decode(run("hosts", "--json", "--hub", hub.url).out)["hosts"]
    [host] = found
    assert (host["self"], host["draining"], host["runs"]) == (True, False, 0)
    assert set(host) == {"id", "name", "version", "runs", "since", "draining", "self"}
    heading, row = run("hosts", "--hub", hub.url).out.splitlines()
    assert heading.split() == ["HOST", "NAME", "VERSION", "RUNS", "SINCE", "STATE"]
    assert row.split()[0] == host["id"]
    assert len(row) <= 80 + max(0, len(host["name"]) - 12)


def test_a_host_is_named_by_its_name_or_its_id() -> None:
    found = [
        {"id": "host_1", "name": "alpha"},
        {"id": "host_2", "name": "alpha"},
        {"id": "h", "name": "beta"},
    ]
    assert find_host(found, "beta") == "h"
    assert find_host(found, "host_2") == "host_2"
    with pytest.raises(BadRequest, match="2 hosts are named 'alpha'"):
        find_host(found, "alpha")
    with pytest.raises(NotFound):
        find_host(found, "gamma")


def test_an_unknown_host_is_not_drained(run: Run, hub: Hub) -> None:
    refused = run("hosts", "drain", "nobody", "--hub", hub.url)
    assert (refused.code, refused.out) == (1, "")
    assert "there is no host 'nobody'" in refused.err

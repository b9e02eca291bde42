"""`dragoman check`."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.cli.serving.check import database_warnings
from tests.cli.conftest import Run

GOOD = """
providers:
  openai:
    type: openai
    base_url: https://ada:hunter2@api.openai.com/v1?key=hunter2
    headers: {x-api-key: hunter2}
    keys:
      - {name: a, api_key_env: OPENAI_A}
      - {api_key_file: empty.txt}
  anthropic: {type: anthropic, api_key_secret: main}
  small: {type: local}
default_provider: openai
model: fast
aliases:
  fast: [openai/gpt-5, small/smollm2]
  wide: {models: [openai/gpt-5, small/smollm2], balance: least_busy}
fallbacks: {"*": [small/smollm2]}
fallback_on: [timeout]
limits:
  key: {requests_per_minute: 60, usd_per_day: 2.5}
  owners: {ada: {parallel: 4}}
"""
MEANING = """\
dragoman.yaml is valid

PROVIDER   TYPE       ADDRESS                    KEYS
openai     openai     https://api.openai.com/v1  $OPENAI_A present, empty.txt missing
anthropic  anthropic  https://api.anthropic.com  the secret main unknown
small      local      here                       none

MODEL                 GOES TO
the default           fast
fast                  openai/gpt-5, then small/smollm2
wide                  openai/gpt-5 or small/smollm2 (least_busy)
any other name        openai/that name
* failing             small/smollm2

failing means: timeout

WHO        MAY ASK
each key   requests_per_minute 60, usd_per_day 2.5
owner ada  parallel 4

POLICY  OPERATIONS             FOR
allow   whatever no rule fits  everybody

OPERATIONS  REACH
web.fetch   public hosts; ports 80, 443
files.*     off
spokes      any free namespace
"""
OPERATIONS = """
providers: {small: {type: local}}
files_root: ./shared
files: {notes: ./notes}
policy_default: ask
policy:
  - {deny: "*.delete_*"}
  - {ask: [mail.send, "*.send_*"], effect: once, agent: support}
agents: {guest: {policy: deny}}
mcp_servers:
  git:
    command: [/usr/bin/uvx, mcp-server-git, --token, hunter2]
    env: {TOKEN: hunter2}
    env_from: [GIT_HOME]
    secrets: {GITHUB: main}
    tools: ["git_*"]
  docs:
    {url: "https://ada:hunter2@docs.example/mcp?key=hunter2", trust: ask, lazy: true, headers: {k: hunter2}}
  old: {url: http://old.example/mcp, enabled: false}
web: {deny_hosts: ["*.bad.example"], allow_networks: [10.1.0.0/16]}
spokes: {namespaces: {warehouse: [stock, "orders-*"], "*": []}}
"""
REACHED = """\
MCP SERVER  COMMAND OR ADDRESS         STATE     TRUST  TOOLS
git         uvx                        started   first  git_*
docs        https://docs.example/mcp   lazy      ask    *
old         http://old.example/mcp     disabled  first  *

POLICY  OPERATIONS             FOR
deny    *.delete_*             everybody
ask     mail.send, *.send_*    effect once; agent support
deny    whatever no rule fits  agent guest
ask     whatever no rule fits  everybody

OPERATIONS  REACH
web.fetch   public hosts, not *.bad.example, and 10.1.0.0/16; ports 80, 443
files.*     shared ./shared, notes ./notes
spokes      warehouse: stock, orders-*; others: none
"""


def test_a_good_configuration_is_explained_without_its_secrets(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dragoman.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    monkeypatch.setenv("OPENAI_A", "hunter2")
    result = run("check")
    assert (result.code, [line.split() for line in result.out.splitlines()]) == (
        0,
        [line.split() for line in MEANING.splitlines()],
    )
    assert result.err == "dragoman: WARNING: the key of openai is missing: empty.txt\n"
    assert "hunter2" not in result.out


def test_the_meaning_comes_as_json_for_programs(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hub.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "empty.txt").touch()
    assert run("check", "--config", "hub.yaml", "--json").json == {
        "source": "hub.yaml",
        "providers": [
            {
                "name": "openai",
                "type": "openai",
                "url": "https://api.openai.com/v1",
                "keys": [
                    {"name": "a", "from": "$OPENAI_A", "state": "missing"},
                    {"name": "2", "from": "empty.txt", "state": "missing"},
                ],
                "models": [],
            },
            {
                "name": "anthropic",
                "type": "anthropic",
                "url": "https://api.anthropic.com",
                "keys": [{"name": "default", "from": "the secret main", "state": "unknown"}],
                "models": [],
            },
            {"name": "small", "type": "local", "url": None, "keys": [], "models": []},
        ],
        "model": "fast",
        "defaultProvider": "openai",
        "aliases": {
            "fast": ["openai/gpt-5", "small/smollm2"],
            "wide": ["openai/gpt-5", "small/smollm2"],
        },
        "balance": {"wide": "least_busy"},
        "fallbacks": {"*": ["small/smollm2"]},
        "fallbackOn": ["timeout"],
        "limits": {
            "key": {"requests_per_minute": 60, "usd_per_day": 2.5},
            "owner": {},
            "owners": {"ada": {"parallel": 4}},
        },
        "mcpServers": [],
        "agents": [],
        "policy": [{"decision": "allow", "operations": None, "for": {}}],
        "reach": {
            "web": {"allow": [], "deny": [], "networks": [], "ports": [80, 443]},
            "files": None,
            "spokes": {"namespaces": {}, "reserved": []},
        },
        "database": None,
        "warnings": [],
    }


def test_servers_policy_and_what_operations_reach_are_explained_without_secrets(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "dragoman.yaml").write_text(OPERATIONS, encoding="utf-8")
    for folder in ("shared", "notes"):
        (tmp_path / folder).mkdir()
    result = run("check")
    expected = [line.split() for line in REACHED.splitlines()]
    assert [line.split() for line in result.out.splitlines()][-len(expected) :] == expected
    assert result.err.splitlines() == [
        "dragoman: WARNING: the MCP server git gets no GIT_HOME: it is not set",
        "dragoman: WARNING: dragoman.yaml:8: policy[1].ask: there is no namespace 'mail'",
        "dragoman: WARNING: dragoman.yaml:8: policy[1].agent: there is no agent 'support'",
    ]
    report = run("check", "--json")
    assert report.json["mcpServers"][0] == {
        "name": "git",
        "from": "uvx",
        "state": "started",
        "trust": "first",
        "tools": ["git_*"],
        "secrets": {"GITHUB": "the secret main"},
        "missing": ["GIT_HOME"],
    }
    assert "hunter2" not in result.out + result.err + report.out + report.err


def test_what_is_switched_off_is_reported_as_off(run: Run, tmp_path: Path) -> None:
    text = "web: {enabled: false}\nspokes: {enabled: false}\n"
    (tmp_path / "dragoman.yaml").write_text(text, encoding="utf-8")
    assert [line.split() for line in run("check").out.splitlines()[-3:]] == [
        ["web.fetch", "off"],
        ["files.*", "off"],
        ["spokes", "off"],
    ]
    assert run("check", "--json").json["reach"] == {"web": None, "files": None, "spokes": None}


def test_a_bad_configuration_ends_with_1_and_all_that_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dragoman.yaml").write_text("modle: x\nmax_steps: 0\n", encoding="utf-8")
    result = run("check")
    assert (result.code, result.out) == (1, "")
    assert result.err.splitlines() == [
        "dragoman: dragoman.yaml:1: modle: there is no such field; did you mean 'model'?",
        "dragoman.yaml:2: max_steps: expected a whole number >= 1, got 0",
        "  docs/configuration.md lists every field",
    ]


def test_a_configuration_of_variables_alone_is_checked_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN__PROVIDERS__UP__TYPE", "ollama")
    result = run("check")
    assert (result.code, result.out.splitlines()[0]) == (0, "the environment is valid")
    monkeypatch.setenv("DRAGOMAN__PROVIDERS__UP__RETRIES", "x")
    assert run("check").err.startswith(
        "dragoman: DRAGOMAN__PROVIDERS__UP__RETRIES: providers.up.retries: expec"
    )


def test_an_empty_configuration_is_good_but_no_use(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dragoman.yaml").touch()
    result = run("check")
    assert (result.code, result.out.splitlines()[0]) == (0, "dragoman.yaml is valid")
    assert "no provider is configured" in result.err


AGENTS = """
providers: {small: {type: local}, cc: {type: claude-code}}
default_provider: small
aliases: {fast: [known, cc/sonnet]}
prices: {small/known: {input: 1, output: 2}}
agents:
  clerk:
    model: fast
    max_usd: 1
    description: Keeps the books.
    stop_when: [{tool: web.fetch}, {time: 2min}, {all: [{text: DONE}, {any: [{tokens: 20000}, {cost: 0.5}]}]}]
    on_prepare_step: steps.py:cheaper
    output: {type: object, properties: {city: {type: string}, people: {type: integer}}}
  other: {model: small/other, stop_when: [{all: [{cost: 0.5}, {steps: 2}]}], output: form.json}
"""


def test_it_says_when_the_answers_of_agents_end_and_what_they_are(run: Run, tmp_path: Path) -> None:
    (tmp_path / "dragoman.yaml").write_text(AGENTS, encoding="utf-8")
    (tmp_path / "steps.py").write_text("def cheaper(step):\n    return None\n", encoding="utf-8")
    (tmp_path / "form.json").write_text('{"type": "array"}', encoding="utf-8")
    result = run("check")
    messages = [
        line.split(maxsplit=1) for line in result.out.splitlines() if line[:6].strip() in ("clerk", "other")
    ]
    assert messages == [
        ["clerk", "stops when web.fetch was called"],
        ["clerk", "stops when it took 120 seconds"],
        ["clerk", "stops when the model said 'DONE' and (it used 20,000 tokens or it cost 0.5 US dollars)"],
        ["clerk", "is for others too, as agents.clerk: Keeps the books."],
        ["clerk", "asks steps.py:cheaper before each step"],
        ["clerk", "is JSON: object with city, people"],
        ["other", "stops when it cost 0.5 US dollars and it took 2 steps"],
        ["other", "is JSON: form.json"],
    ]
    unpriced = "the agent other counts money, and small/other has no price: set one under `prices`"
    assert result.err == f"dragoman: WARNING: {unpriced}\n"


@pytest.mark.parametrize(
    ("agent", "why"),
    [
        ("{stop_when: [{use: steps.py:gone}]}", "agents.a.stop_when[0].use: steps.py has no function 'gone'"),
        ("{on_prepare_step: no.such:x}", "agents.a.on_prepare_step: There is no module 'no.such'"),
        ("{output: gone.json}", "agents.a.output: cannot read 'gone.json': No such file or directory"),
        ("{output: {type: 7}}", "agents.a.output: The schema is not a valid JSON Schema"),
    ],
)
def test_what_an_agent_names_is_looked_for(agent: str, why: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "dragoman.yaml").write_text(f"agents: {{a: {agent}}}", encoding="utf-8")
    (tmp_path / "steps.py").write_text("x = 1\n", encoding="utf-8")
    result = run("check")
    assert result.code == 1
    assert f"dragoman: dragoman.yaml:1: {why}" in result.err


def test_unknown_names_in_the_policy_are_told_with_their_lines(run: Run) -> None:
    Path("dragoman.yaml").write_text(
        "providers: {small: {type: local}}\n"
        "policy:\n"
        "  - deny: math.calcualte\n"
        "  - {ask: time.*, agent: suport}\n"
        "agents: {support: {}}\n"
    )
    result = run("check")
    assert result.code == 0
    assert (
        "WARNING: dragoman.yaml:3: policy[0].deny: there is no operation 'math.calcualte';"
        " did you mean 'math.calculate'?"
    ) in result.err
    assert (
        "dragoman.yaml:4: policy[1].agent: there is no agent 'suport'; did you mean 'support'?" in result.err
    )
    assert len(run("check", "--json").json["warnings"]) == 2


def test_a_database_with_too_few_connections_for_a_hub_is_a_warning() -> None:
    """A hub has 11 at most (a writer, 4 readers, its lock, signals, 4 of the queue); 2 more in recovery."""
    found = {"problem": None, "clockSkew": 0.0, "maxConnections": 100}
    assert database_warnings({**found, "connections": 87}) == []
    assert len(database_warnings({**found, "connections": 88})) == 1

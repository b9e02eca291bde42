"""Configuration errors: line and field, all at once, without secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.config import Config, parse_config, read_config
from dragoman.errors import ConfigError

UP = "providers:\n  up: {type: openai, base_url: http://h/v1}\n"
PASTED = "sk-proj-4f9a8b7c6d5e4f3a2b1c"
STOPS = """\
agents:
  a:
    stop_when:
      - {}
      - {tool: x, cost: 1}
      - matches: "("
      - time: soon
      - {use: mine}
      - all: [{steps: 2}, {any: [{}]}]
    on_prepare_step: mine
    output: {}
"""

BAD: dict[str, tuple[str, list[str]]] = {
    "an unknown field": ("modle: x", ["hub.yaml:1: modle: there is no such field; did you mean 'model'?"]),
    "an unknown field of few": (
        "cors: {}\nmetrics:\n  open: true",
        ["hub.yaml:3: metrics.open: there is no such field; there are public"],
    ),
    "LiteLLM's file": (
        "model_list: []",
        ["hub.yaml:1: model_list: there is no such field: it is LiteLLM's; docs/gateway.md shows"],
    ),
    "a key in the file": (
        f"{UP}  down:\n    type: anthropic\n    api_key: {PASTED}",
        ["hub.yaml:5: providers.down.api_key: there is no such field: a key stays out of this file"],
    ),
    "several errors in the order of their lines": (
        "providers:\n  up:\n    type: opnai\n    retries: lots\nlimits:\n  body: 0\n",
        [
            (
                "hub.yaml:3: providers.up.type: expected openai, responses, anthropic, "
                "ollama, scripted, local or cla"
            ),
            "hub.yaml:4: providers.up.retries: expected a whole number, got 'lots'",
            "hub.yaml:6: limits.body: expected a whole number >= 1, got 0",
        ],
    ),
    "a field said twice": (
        "model: up/a\nproviders:\n  up: {type: local}\nmodel: up/b",
        ["hub.yaml:4: model: is set twice; first in line 1"],
    ),
    "a union": (
        "disconnect_grace: nevr",
        ["hub.yaml:1: disconnect_grace: expected a number or never, got 'nevr'; did you mean 'never'?"],
    ),
    "a missing field": ("providers:\n  up:\n    retries: 1", ["hub.yaml:2: providers.up.type: is missing"]),
    "no address": (
        "providers: {up: {type: openai}}",
        ["hub.yaml:1: providers.up.base_url: is missing: such as https://api.openai.com/v1"],
    ),
    "no URL": (
        "providers: {up: {type: openai, base_url: 'localhost:1/v1?key=s3cret'}}",
        [
            "hub.yaml:1: providers.up.base_url: expected a URL such as https://host/v1, with http:// or https://"
        ],
    ),
    "a field of another type of provider": (
        "providers:\n  up:\n    type: anthropic\n    num_ctx: 5",
        ["hub.yaml:4: providers.up.num_ctx: is for type ollama, and this is anthropic"],
    ),
    "the key for the name of its variable": (
        f"providers: {{up: {{type: anthropic, api_key_env: {PASTED}}}}}",
        ["hub.yaml:1: providers.up.api_key_env: expected the name of an environment variable, not the key"],
    ),
    "two places of a key": (
        "providers: {up: {type: anthropic, api_key_env: A, api_key_file: b}}",
        ["hub.yaml:1: providers.up.api_key_file: only one of api_key_env or api_key_file"],
    ),
    "keys twice and without a place": (
        "providers: {up: {type: anthropic, api_key_env: A,\n keys: [{name: a},\n{name: a, api_key_env: B}]}}",
        [
            "hub.yaml:2: providers.up.keys: either several keys here, or one in api_key_env, api_key_file",
            "hub.yaml:2: providers.up.keys[0]: expected one of api_key_env, api_key_file or api_key_secret",
            "hub.yaml:3: providers.up.keys[1].name: another key of this provider has this name",
        ],
    ),
    "an unknown stop condition": (
        STOPS.replace("any: [{}]", "any: [{tol: x}]"),
        ["hub.yaml:9: agents.a.stop_when[5].all[1].any[0].tol: there is no such field; did you mean 'tool'?"],
    ),
    "stop conditions that cannot be": (
        STOPS,
        [
            "hub.yaml:4: agents.a.stop_when[0]: expected a condition: tool, text, matches, steps, tokens,",
            "hub.yaml:5: agents.a.stop_when[1]: has tool and cost; write one, or several",
            "hub.yaml:6: agents.a.stop_when[2].matches: is not a valid regular expression: missing ), unt",
            "hub.yaml:7: agents.a.stop_when[3].time: 'soon' is not a valid duration; write it like 90s, 2min",
            "hub.yaml:8: agents.a.stop_when[4].use: expected module:name or ./file.py:name, got 'mine'",
            "hub.yaml:9: agents.a.stop_when[5].all[1].any[0]: expected a condition:",
            "hub.yaml:10: agents.a.on_prepare_step: expected module:name or ./file.py:name, got 'mine'",
            "hub.yaml:11: agents.a.output: expected a JSON Schema, or the path of a file that holds one",
        ],
    ),
    "an unknown provider": (
        f"{UP}model: upp/x",
        ["hub.yaml:3: model: there is no provider 'upp'; did you mean 'up'?"],
    ),
    "a model that is none": (
        f"{UP}model: fast\naliases: {{fasr: up/x}}",
        ["hub.yaml:3: model: 'fast' is neither provider/model nor an alias; did you mean 'fasr'?"],
    ),
    "aliases in a circle": (
        f"{UP}aliases:\n  a: b\n  b: [up/x, a]",
        [
            "hub.yaml:4: aliases.a: is a cycle: a -> b -> a",
            "hub.yaml:5: aliases.b: is a cycle: b -> a -> b",
        ],
    ),
    "an alias that balances what is not there": (
        f"{UP}aliases:\n  a:\n    models: [up/x, upp/y]\n    balance: round_robbin\n    weight: 3",
        [
            "hub.yaml:6: aliases.a.balance: expected failover, round_robin, least_busy, weighted or latency",
            "hub.yaml:7: aliases.a.weight: there is no such field; did you mean 'weights'?",
        ],
    ),
    "a model of a balanced alias that leads nowhere": (
        f"{UP}aliases:\n  a:\n    models:\n      - up/x\n      - upp/y\n    balance: latency",
        ["hub.yaml:7: aliases.a.models[1]: there is no provider 'upp'; did you mean 'up'?"],
    ),
    "an alias without models": (
        f"{UP}aliases:\n  a: {{balance: latency}}\n  b: {{models: [], balance: latency}}",
        [
            "hub.yaml:4: aliases.a.models: is missing",
            "hub.yaml:5: aliases.b.models: expected a list that is not empty, got an",
        ],
    ),
    "weights that say nothing": (
        f"""{UP}aliases:
  a: {{models: [up/x], balance: latency, weights: {{up/x: 1}}}}
  b: {{models: [up/x, up/y], balance: weighted, weights: {{up/z: 1}}}}
  c: {{models: [up/x, up/y], balance: weighted, weights: {{up/x: 0, up/y: 0}}}}
""",
        [
            "hub.yaml:4: aliases.a.weights: is for balance: weighted, and this is latency",
            "hub.yaml:5: aliases.b.weights.up/z: 'up/z' is not one of the models; did you mean",
            "hub.yaml:6: aliases.c.weights: at least one model needs a weight above 0",
        ],
    ),
    "a weight below 0": (
        f"{UP}aliases:\n  c: {{models: [up/x, up/y], balance: weighted, weights: {{up/x: -1}}}}",
        ["hub.yaml:4: aliases.c.weights.up/x: expected a number >= 0, got -1"],
    ),
    "an alias like a provider's model": (
        f"{UP}aliases:\n  up/x: up/y",
        ["hub.yaml:4: aliases.up/x: an alias must not be empty, or begin with a provider's name"],
    ),
    "fallbacks that lead nowhere": (
        f"{UP}fallbacks:\n  gone/x: [up/x]\n  up/x: [up/x]\n  '*':\n    - gone/y",
        [
            "hub.yaml:4: fallbacks.gone/x: there is no provider 'gone'; there are up",
            "hub.yaml:5: fallbacks.up/x[0]: falls back to itself",
            "hub.yaml:7: fallbacks.*[0]: there is no provider 'gone'; there are up",
        ],
    ),
    "no fallback": (
        f"{UP}fallbacks:\n  '*': []",
        ["hub.yaml:4: fallbacks.*: expected a list that is not empty, got an empty list"],
    ),
    "an unknown default provider": (
        "default_provider: up",
        ["hub.yaml:1: default_provider: there is no provider 'up'; there are none"],
    ),
    "prices of nobody": (
        "prices:\n  up/x: {input: 1, output: 2}",
        ["hub.yaml:2: prices.up/x: there is no provider 'up'; there are none"],
    ),
    "a price below nothing": (
        "prices:\n  '*/x': {input: -1, output: 2}",
        ["hub.yaml:2: prices.*/x.input: expected a number >= 0, got -1"],
    ),
    "a limit below nothing": (
        "limits:\n  owners:\n    ada: {usd_per_day: -1}",
        ["hub.yaml:3: limits.owners.ada.usd_per_day: expected a number >= 0, got -1.0"],
    ),
    "a share above one": (
        "telemetry: {sample: 2}",
        ["hub.yaml:1: telemetry.sample: expected a number <= 1, got 2"],
    ),
    "an MCP server that cannot be asked": (
        """mcp_servers:
  a: {url: "http://h/\\nx: y"}
  b: {url: http://h, headers: {a: "b\\r\\nc: d"}}
  c: {url: http://h, headers: {"a b": c, é: d}, secrets: {"x:": s}}
""",
        [
            "hub.yaml:2: mcp_servers.a.url: must be an address that begins with http:// or https://",
            "hub.yaml:3: mcp_servers.b.headers.a: is not a valid HTTP header",
            "hub.yaml:4: mcp_servers.c.headers.'a b': is not a valid HTTP header",
            "hub.yaml:4: mcp_servers.c.headers.é: is not a valid HTTP header",
            "hub.yaml:4: mcp_servers.c.secrets.x:: is not a valid HTTP header",
        ],
    ),
    "an MCP server that cannot be started": (
        'mcp_servers:\n  a: {command: ["a\\0b"]}\n  b: {command: [b], env: {"A=B": c, C: "\\0"}}\n',
        [
            "hub.yaml:2: mcp_servers.a.command[0]: contains a NUL character",
            "hub.yaml:3: mcp_servers.b.env.'A=B': is not a valid environment variable",
            "hub.yaml:3: mcp_servers.b.env.C: is not a valid environment variable",
        ],
    ),
    "an address and a header that no server could get": (
        'providers: {up: {type: openai, base_url: "http://h\\n/v1", headers: {a: 日本}}}',
        [
            "hub.yaml:1: providers.up.base_url: expected a URL such as https://host/v1, with http:// or",
            "hub.yaml:1: providers.up.headers.a: is not a valid HTTP header",
        ],
    ),
    "a header over two lines": (
        'providers: {up: {type: anthropic, headers: {authorization: "a\\nb"}}}',
        ["hub.yaml:1: providers.up.headers.authorization: is not a valid HTTP header"],
    ),
    "an origin without a scheme": (
        "cors: {origins: ['*', localhost]}",
        ["hub.yaml:1: cors.origins[1]: expected an origin such as https://host, got 'localhost'"],
    ),
    "hosts at no address": (
        "hosts: {listen: localhost, url: 'ftp://h'}",
        [
            "hub.yaml:1: hosts.listen: expected an address and a port, such as 0.0.0.0:8100, got 'localhost'",
            "hub.yaml:1: hosts.url: expected a URL such as https://host/v1, with http:// or https://",
        ],
    ),
    "a tab": ("model:\n\tx: 1", ["hub.yaml:2: not valid YAML: a tab, where only spaces are allowed"]),
    "no end": (
        "model: [",
        ["hub.yaml:1: not valid YAML: expected the node content, but found '<stream end>'"],
    ),
    "a control character": (
        "a: b\nmodel: \x00",
        ["hub.yaml:2: not valid YAML: a character that is not allowed"],
    ),
    "a list": ("- 1", ["hub.yaml:1: expected a mapping, got a list"]),
    "a tag": (
        "model: !!python/name:os.system",
        ["hub.yaml:1: model: the tag 'python/name:os.system' is not supported"],
    ),
    "an anchor in itself": (
        "operations: &a [*a]",
        ["hub.yaml:1: operations[0]: an anchor that contains itself"],
    ),
    "no number": (
        "max_steps: .inf",
        ["hub.yaml:1: max_steps: infinity is not allowed; write null for no"],
    ),
    "too deep": ("[" * 2000, ["hub.yaml: nested too deeply"]),
    "a word for a truth": (
        "metrics: {public: yes}",
        ["hub.yaml:1: metrics.public: expected true or false, got 'yes'"],
    ),
}


def complaint(folder: Path, text: str, **environ: str) -> list[str]:
    """The lines of the error that a file gives."""
    path = folder / "hub.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        read_config(path, environ)
    return error.value.message.replace(f"{folder}/", "").split("\n")


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_with_its_line_and_field(case: str, tmp_path: Path) -> None:
    text, expected = BAD[case]
    path = tmp_path / "hub.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        read_config(path, {})
    messages = error.value.message.replace(f"{tmp_path}/", "").split("\n")
    assert [line[: len(start)] for line, start in zip(messages, expected, strict=True)] == expected
    assert PASTED not in error.value.message
    assert "s3cret" not in error.value.message


def test_at_most_twenty_errors_are_told_and_the_others_counted(tmp_path: Path) -> None:
    messages = complaint(tmp_path, "\n".join(f"field{n}: 1" for n in range(30)))
    assert len(messages) == 21
    assert messages[-1] == "and 10 more"


@pytest.mark.parametrize(
    "text",
    [
        "providers: {up: {type: openai, headers: {authorization: [%s]}}}",
        "providers: {up: {type: %s}}",
        "providers: {up: {type: local, keys: [%s]}}",
        "providers: {up: {type: local, %s: 1}}",
        "providers: {up: {type: local, retries: %s}}",
        "providers: {up: {type: local, api_key_secret: %s}}",
        "providers: %s",
        "model: {%s: 1}",
        "x: [%s",
        "model: '%s",
        "model: !%s x",
        "master_key_env: %s",
        "synchronous: %s",
    ],
)
def test_a_key_pasted_anywhere_is_in_no_error(text: str, tmp_path: Path) -> None:
    messages = complaint(tmp_path, text % PASTED)
    assert PASTED not in "\n".join(messages)


def test_a_file_that_cannot_be_read_is_an_error_and_bytes_that_are_no_text_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read '.*nowhere': No such file"):
        read_config(tmp_path / "nowhere", {})
    path = tmp_path / "hub.yaml"
    path.write_bytes(b"model: a\ninstructions: \xff")
    with pytest.raises(ConfigError, match=r"hub\.yaml:2: not valid YAML: a byte that is not UTF-8"):
        read_config(path, {})


def test_anchors_and_merges_work_and_an_own_field_goes_before_a_merged_one(tmp_path: Path) -> None:
    path = tmp_path / "hub.yaml"
    path.write_text(
        "providers:\n"
        "  a: &a {type: openai, base_url: http://a/v1, retries: 1, idle_timeout: 5}\n"
        "  b: {<<: *a, base_url: http://b/v1}\n"
        "  c: {<<: [{retries: 9}, *a], idle_timeout: 6}\n",
        encoding="utf-8",
    )
    assert {
        name: (provider.base_url, provider.retries, provider.idle_timeout)
        for name, provider in read_config(path, {}).providers.items()
    } == {"a": ("http://a/v1", 1, 5.0), "b": ("http://b/v1", 1, 5.0), "c": ("http://a/v1", 9, 6.0)}


def test_aliases_that_multiply_without_end_are_refused(tmp_path: Path) -> None:
    layers = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    layers += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    (message,) = complaint(tmp_path, "\n".join(layers))
    assert "more than 100000 values" in message


def test_words_and_dates_are_text_and_a_section_of_nothing_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "hub.yaml"
    path.write_text(
        "\ufeffproviders:\n  a: {type: anthropic, version: 2023-06-01}\n"
        "  b: {type: openai, base_url: http://h, thinking: off}\nlimits:\n  # body: 1\n",
        encoding="utf-8",
    )
    config = read_config(path, {})
    assert (config.providers["a"].version, config.providers["b"].thinking) == ("2023-06-01", "off")
    assert config.limits == Config().limits


def test_a_decoded_value_is_checked_in_the_same_way() -> None:
    with pytest.raises(ConfigError) as error:
        parse_config({"modle": 1, "limits": {"body": "x"}, "aliases": {3: "a/b"}}, source="here")
    assert error.value.message.split("\n") == [
        "here: modle: there is no such field; did you mean 'model'?",
        "here: limits.body: expected a whole number, got 'x'",
        "here: aliases: expected text as a name, got 3",
    ]


PLAIN = ["providers", "up", "type", "openai", "keys", "limits", "aliases", "up/x", "prices", "input", "null"]
SIGNS = ["*", "${X}", "$${", "&a", "*a", "<<", "!!set", "?", "'", "#", "|", ">", "@", "%"]
NUMBERS = ["-1", "1e9", "0x_", "1:2", ".nan", "2023-01-01", "true"]
WORDS = st.sampled_from(PLAIN + SIGNS + NUMBERS)
LINES = st.tuples(
    st.integers(0, 4), st.lists(WORDS, max_size=3), st.sampled_from([":", ": ", " ", ", ", "-"])
)
TEXTS = st.lists(LINES, max_size=8).map(
    lambda lines: "\n".join("  " * depth + glue.join(words) for depth, words, glue in lines)
)
STEPS = st.sampled_from(["providers", "UP", "type", "limits", "key", "0", "", "cors", "origins", "model"])
ENVIRON = st.lists(STEPS, max_size=4).map(lambda steps: "__".join(["DRAGOMAN", *steps]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=12,
)


def outcome(config: Callable[[], Config]) -> str:
    """The word for a configuration, or its error's message."""
    try:
        return type(config()).__name__
    except ConfigError as error:
        return error.message


@given(text=TEXTS | st.text(max_size=60))
def test_any_text_is_a_configuration_or_an_error_that_says_where(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    assert outcome(lambda: read_config(path, {"X": "1"})).startswith(("Config", str(path)))


@given(raw=st.dictionaries(st.sampled_from(Config.__struct_fields__), VALUES, max_size=3) | VALUES)
def test_any_value_is_a_configuration_or_an_error_of_it(raw: object) -> None:
    assert outcome(lambda: parse_config(raw)).startswith(("Config", "the configuration: "))


@given(environ=st.dictionaries(ENVIRON, st.text(max_size=8) | WORDS, max_size=4))
def test_any_environment_is_a_configuration_or_an_error(environ: dict[str, str]) -> None:
    assert isinstance(outcome(lambda: read_config(None, environ)), str)

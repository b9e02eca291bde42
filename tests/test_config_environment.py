"""Environment variables in a configuration, and variables that override fields."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dragoman.config import Config, config_variables, read_config
from dragoman.errors import ConfigError


def read(folder: Path, text: str, **environ: str) -> Config:
    """The configuration of a file in this environment."""
    path = folder / "hub.yaml"
    path.write_text(text, encoding="utf-8")
    return read_config(path, environ)


def complaint(folder: Path, text: str, **environ: str) -> list[str]:
    """The lines of the error that a file gives in this environment."""
    with pytest.raises(ConfigError) as error:
        read(folder, text, **environ)
    return error.value.message.replace(f"{folder}/", "").split("\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A}", "one"),
        ("<${A}|${A}>", "<one|one>"),
        ("${NONE:-two}", "two"),
        ("${EMPTY:-two}", "two"),
        ("${EMPTY}!", "!"),
        ("${NONE:-}!", "!"),
        ("${A:-two}", "one"),
        ("${NONE:-http://h/v1}", "http://h/v1"),
        ("$${A} $A $ {A}", "${A} $A $ {A}"),
        ("${TRICK}", "${A}"),
    ],
)
def test_a_variable_in_a_text_is_replaced(text: str, expected: str, tmp_path: Path) -> None:
    config = read(tmp_path, f"instructions: {text}", A="one", EMPTY="", TRICK="${A}")
    assert config.instructions == expected


def test_a_variable_is_read_as_a_number_where_one_is_wanted_and_as_text_where_text_is(
    tmp_path: Path,
) -> None:
    text = (
        "max_steps: ${N}\ninstructions: ${N}\nkeep_alive: ${F:-2.5}\nmetrics: {public: '${NO}'}\n"
        "agents:\n  a: {options: {stop: '${N}'}}\n  b:\n    options:\n      temperature: ${F:-0.5}\n"
    )
    config = read(tmp_path, text, N="7", NO="false")
    assert (config.max_steps, config.instructions, config.keep_alive, config.metrics.public) == (
        7,
        "7",
        2.5,
        False,
    )
    assert [agent.options for agent in config.agents.values()] == [{"stop": "7"}, {"temperature": 0.5}]


def test_variables_that_are_not_set_are_named_with_their_lines(tmp_path: Path) -> None:
    advice = "to make it optional, and name keys in api_key_env instead"
    unset = "the environment variable {0} is not set; write ${{{0}:-default}} "
    text = "model: ${M}\nproviders:\n  up:\n    type: openai\n    base_url: '${U}'\n"
    assert complaint(tmp_path, text) == [
        f"hub.yaml:1: model: {unset.format('M')}{advice}",
        f"hub.yaml:5: providers.up.base_url: {unset.format('U')}{advice}",
    ]


@pytest.mark.parametrize("text", ["${}", "${A", "${A.B}", "${ A }", "${1}"])
def test_what_only_looks_like_a_variable_is_refused(text: str, tmp_path: Path) -> None:
    (line,) = complaint(tmp_path, f"instructions: '{text}'", A="x")
    assert line.startswith(
        "hub.yaml:1: instructions: expected a variable's name and '}' after '${'; write '$${'"
    )


def test_the_value_of_a_variable_is_in_no_error(tmp_path: Path) -> None:
    problems = complaint(
        tmp_path,
        "providers:\n  up: {type: openai, base_url: '${PLACE}', headers: {x-api-key: '${KEY}'}}\n",
        PLACE="ftp://ada:hunter2@h",
        KEY="a\nb-hunter2",
    )
    assert problems == [
        "hub.yaml:2: providers.up.base_url: expected a URL such as https://host/v1, with http:// or https://",
        "hub.yaml:2: providers.up.headers.x-api-key: is not a valid HTTP header",
    ]


OPENAI = "providers:\n  OpenAI:\n    type: openai\n    base_url: http://h/v1\n    keys: [{api_key_env: A}]\n"
SAID: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "over the file, whatever the case": (
        {"DRAGOMAN__PROVIDERS__OPENAI__BASE_URL": "http://u/v1", "dragoman__providers__OpenAI__retries": "0"},
        {"base_url": "http://u/v1", "retries": 0},
    ),
    "an item of a list": ({"DRAGOMAN__PROVIDERS__OPENAI__KEYS__0__API_KEY_ENV": "B"}, {"keys": ["B"]}),
    "a list": ({"DRAGOMAN__PROVIDERS__OPENAI__KEYS": "[{api_key_env: C}]"}, {"keys": ["C"]}),
    "null": ({"DRAGOMAN__PROVIDERS__OPENAI__IDLE_TIMEOUT": "null"}, {"idle_timeout": None}),
    "a text that looks like a number or a list": (
        {
            "DRAGOMAN__PROVIDERS__OPENAI__HEADERS__X_ID": "007",
            "DRAGOMAN__PROVIDERS__OPENAI__HEADERS__X_B": "[a",
        },
        {"headers": {"x_id": "007", "x_b": "[a"}},
    ),
    "a dollar is only a dollar": (
        {"DRAGOMAN__PROVIDERS__OPENAI__HEADERS__X": "${A}"},
        {"headers": {"x": "${A}"}},
    ),
}


@pytest.mark.parametrize("case", SAID)
def test_a_variable_says_a_field(case: str, tmp_path: Path) -> None:
    environ, expected = SAID[case]
    provider = read(tmp_path, OPENAI, **environ).providers["OpenAI"]
    value = {name: getattr(provider, name) for name in expected}
    if "keys" in value:
        value["keys"] = [key.api_key_env for key in provider.keys]
    assert value == expected


def test_a_name_with_signs_is_found_by_underscores(tmp_path: Path) -> None:
    text = "providers: {my-up: {type: local}}\naliases: {gpt-4.1: my-up/a}\n"
    config = read(
        tmp_path, text, DRAGOMAN__ALIASES__GPT_4_1="my-up/b", DRAGOMAN__PROVIDERS__MY_UP__RETRIES="1"
    )
    assert (config.aliases, config.providers["my-up"].retries) == ({"gpt-4.1": "my-up/b"}, 1)


def test_a_hub_needs_no_file_at_all() -> None:
    environ = {
        "DRAGOMAN__PROVIDERS__UP__TYPE": "openai",
        "DRAGOMAN__PROVIDERS__UP__BASE_URL": "http://h/v1",
        "DRAGOMAN__MODEL": "up/x",
        "DRAGOMAN_DATA": "elsewhere",
    }
    config = read_config(None, environ)
    assert (config.model, config.providers["up"].base_url) == ("up/x", "http://h/v1")
    assert config_variables(environ) == sorted(name for name in environ if "__" in name)
    assert read_config(None, {}) == Config()


def test_the_environment_is_the_process_s_own_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGOMAN__MAX_STEPS", "3")
    assert (read_config(None).max_steps, read_config(None, {}).max_steps) == (3, 10)


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "a value": (
        {"DRAGOMAN__PROVIDERS__OPENAI__RETRIES": "lots"},
        "providers.OpenAI.retries: expected a whole number, got 'lots'",
    ),
    "a field": ({"DRAGOMAN__MODLE": "x"}, "modle: there is no such field; did you mean 'model'?"),
    "two for one": (
        {"DRAGOMAN__MAX_STEPS": "1", "DRAGOMAN__max_steps": "2"},
        "max_steps: DRAGOMAN__MAX_STEPS and DRAGOMAN__max_steps set the same field",
    ),
    "an item that is not there": (
        {"DRAGOMAN__PROVIDERS__OPENAI__KEYS__1__NAME": "x"},
        "providers.OpenAI.keys.1: there is no field or item of this name",
    ),
    "a field that is missing": (
        {"DRAGOMAN__PROVIDERS__UP__TYPE": "openai"},
        "providers.up.base_url: is missing: such as https://api.openai.com/v1",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_variable_that_is_wrong_is_named(case: str, tmp_path: Path) -> None:
    environ, expected = WRONG[case]
    assert complaint(tmp_path, OPENAI, **environ) == [f"{min(environ)}: {expected}"]


def test_a_variable_without_a_field_is_named(tmp_path: Path) -> None:
    problems = complaint(tmp_path, "{}", DRAGOMAN__="1")
    assert problems == ["hub.yaml: the environment variable DRAGOMAN__ does not name a field"]


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        (r'telemetry: {service_name: "a\ud83d"}', {}, "a\ufffd"),
        (r'telemetry: {service_name: "a\ud83d\ude00"}', {}, "a\U0001f600"),
        ('telemetry: {service_name: "${NAME}"}', {"NAME": "a\ud83d"}, "a\ufffd"),
        ("{}", {"DRAGOMAN__TELEMETRY__SERVICE_NAME": "a\udc80"}, "a\ufffd"),  # of a byte that is not UTF-8
    ],
)
def test_half_an_emoji_becomes_a_replacement_character(
    text: str, environ: dict[str, str], expected: str, tmp_path: Path
) -> None:
    assert read(tmp_path, text, **environ).telemetry.service_name == expected

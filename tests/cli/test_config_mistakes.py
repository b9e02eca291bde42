"""Mistakes in `dragoman.yaml`: each is told with its line, its field and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run

UP = "providers:\n  up: {type: ollama}\n"

# What is wrong: the file, how the error begins, and a word of the fix.
MISTAKES: dict[str, tuple[str, str, str]] = {
    "a misspelt section": ("provider:\n  up: {type: ollama}\n", "1: provider: ", "did you mean 'providers'?"),
    "a misspelt field": (f"{UP}limits:\n  bodi: 5\n", "4: limits.bodi: ", "did you mean 'body'?"),
    "camel case": (f"{UP}maxSteps: 5\n", "3: maxSteps: ", "did you mean 'max_steps'?"),
    "a dash for an underscore": (f"{UP}max-steps: 5\n", "3: max-steps: ", "did you mean 'max_steps'?"),
    "upper case": (f"{UP}MODEL: up/x\n", "3: MODEL: ", "did you mean 'model'?"),
    "a name of another product": (
        "providers:\n  up:\n    type: ollama\n    api_base: http://h\n",
        "4: providers.up.api_base: ",
        "base_url",
    ),
    "a key in the file": (
        "providers:\n  up:\n    type: anthropic\n    api_key: sk-ant-0a1b2c3d4e5f6a7b8c9d\n",
        "4: providers.up.api_key: ",
        "api_key_env",
    ),
    "an unknown type of provider": (
        "providers:\n  up:\n    type: opnai\n",
        "3: providers.up.type: ",
        "did you mean 'openai'?",
    ),
    "a product's name as the type": (
        "providers:\n  up:\n    type: gemini\n",
        "3: providers.up.type: ",
        "openai for any OpenAI-compatible server",
    ),
    "no type": (
        "providers:\n  openai:\n    base_url: http://h/v1\n",
        "2: providers.openai.type: ",
        "openai, responses, anthropic",
    ),
    "no address": (
        "providers:\n  up: {type: openai}\n",
        "2: providers.up.base_url: ",
        "https://api.openai.com/v1",
    ),
    "an address without a scheme": (
        "providers:\n  up: {type: ollama, base_url: localhost:11434}\n",
        "2: providers.up.base_url: ",
        "http://",
    ),
    "the address of an endpoint": (
        "providers:\n  up: {type: openai, base_url: http://h/v1/chat/completions}\n",
        "2: providers.up.base_url: ",
        "leave that out",
    ),
    "an unset variable": (f"{UP}model: ${{NO_SUCH_MODEL}}\n", "3: model: ", ":-default"),
    "a variable without braces": (
        "providers:\n  up: {type: ollama, base_url: $UP_URL}\n",
        "2: providers.up.base_url: ",
        "${UP_URL}",
    ),
    "a dollar before the name of a variable": (
        "providers:\n  up: {type: anthropic, api_key_env: $UP_KEY}\n",
        "2: providers.up.api_key_env: ",
        "write UP_KEY, without",
    ),
    "a tab": ("providers:\n\tup: {type: ollama}\n", "2: not valid YAML: ", "spaces"),
    "a wrong indentation": (
        "providers:\n  up:\n    type: ollama\n   retries: 3\n",
        "4: not valid YAML: ",
        "indent",
    ),
    "a field one level too high": (
        "providers:\n  up:\n    type: ollama\nretries: 3\n",
        "4: retries: ",
        "providers.NAME.retries",
    ),
    "no space behind a colon": ("model:up/x\n", "1: expected a mapping", "space"),
    "a quote that is not closed": (f'{UP}model: "up/x\n', "3: not valid YAML: ", "quote"),
    "a star without quotes": (f"{UP}fallbacks:\n  *: [up/x]\n", "4: not valid YAML: ", "quotes"),
    "an at sign without quotes": (f"{UP}instructions: @file\n", "3: not valid YAML: ", "quotes"),
    "a field that is set twice": (f"{UP}max_steps: 3\nmax_steps: 4\n", "4: max_steps: ", "first in line 3"),
    "an anchor that is not there": (f"{UP}cors: *all\n", "3: not valid YAML: ", "&"),
    "a number in words": (f"{UP}max_steps: ten\n", "3: max_steps: ", "a whole number"),
    "a number with a unit": (f"{UP}limits: {{body: 8MB}}\n", "3: limits.body: ", "8000000"),
    "seconds with a unit": (f"{UP}keep_alive: 15s\n", "3: keep_alive: ", "write 15"),
    "minutes with a unit": (f"{UP}disconnect_grace: 2min\n", "3: disconnect_grace: ", "write 120"),
    "a price with a dollar": (
        f"{UP}prices:\n  up/x: {{input: $3, output: 15}}\n",
        "4: prices.up/x.input: ",
        "a number",
    ),
    "yes for true": (f"{UP}web: {{enabled: yes}}\n", "3: web.enabled: ", "write true"),
    "off for false": (f"{UP}web: {{enabled: off}}\n", "3: web.enabled: ", "write false"),
    "a quoted number": (f'{UP}max_steps: "5"\n', "3: max_steps: ", "without quotes"),
    "an octal number": (f"{UP}max_steps: 010\n", "3: max_steps: ", "leading zero"),
    "a negative limit": (f"{UP}limits:\n  key: {{parallel: -1}}\n", "4: limits.key.parallel: ", ">= 0"),
    "a list for a mapping": ("providers:\n  - name: up\n    type: ollama\n", "1: providers: ", "NAME:"),
    "a mapping for a list": (f"{UP}policy:\n  ask: mail.send\n", "3: policy: ", "- "),
    "one text for a list": (f"{UP}operations: tools.py\n", "3: operations: ", "[tools.py]"),
    "an unknown provider of a model": (f"{UP}model: upp/x\n", "3: model: ", "did you mean 'up'?"),
    "a model without its provider": (f"{UP}model: llama3\n", "3: model: ", "up/llama3"),
    "an alias of nothing": (f"{UP}aliases:\n  fast: upp/x\n", "4: aliases.fast: ", "did you mean 'up'?"),
    "an unknown operation": (f"{UP}pinned:\n  - time.nov\n", "4: pinned[0]: ", "time.now"),
    "an unknown operation of an agent": (
        f"{UP}agents:\n  a:\n    model: up/x\n    operations: [math.calcualte]\n",
        "6: agents.a.operations[0]: ",
        "math.calculate",
    ),
    "a bad pattern of a rule": (f"{UP}policy:\n  - deny: 'mail send'\n", "4: policy[0]", "mail.*"),
    "a bad rate": (
        f"{UP}mcp_servers:\n  time: {{command: [uvx], rate: 5x}}\n",
        "4: mcp_servers.time.rate: ",
        "60/minute",
    ),
    "a command as one text": (
        f"{UP}mcp_servers:\n  time: {{command: uvx mcp-server-time}}\n",
        "4: mcp_servers.time.command: ",
        "[uvx, mcp-server-time]",
    ),
    "the servers of another product": (
        f"{UP}mcpServers:\n  time: {{command: uvx, args: [x]}}\n",
        "3: mcpServers: ",
        "mcp_servers",
    ),
    "a file of operations that is not there": (
        f"{UP}operations:\n  - ./no_such_tools.py\n",
        "4: operations[0]: ",
        "correct the path",
    ),
    "a folder that is not there": (
        f"{UP}files:\n  notes: ./no_such_folder\n",
        "4: files.notes: ",
        "correct the path",
    ),
    "a script that is not there": (
        "providers:\n  s:\n    type: scripted\n    script: ./no_such.yaml\n",
        "4: providers.s.script: ",
        "no_such.yaml",
    ),
    "an origin with a slash": (
        f"{UP}cors:\n  origins:\n    - http://localhost:3000/\n",
        "5: cors.origins[0]: ",
        "http://localhost:3000",
    ),
    "an origin without a scheme": (
        f"{UP}cors: {{origins: [app.example]}}\n",
        "3: cors.origins[0]: ",
        "https://",
    ),
    "a file of another format": ('providers = { up = "x" }\n', "1: expected a mapping", "space behind"),
    "a misspelt alias of a fallback": (
        f"{UP}aliases: {{fast: up/x}}\nfallbacks:\n  fats: [up/x]\n",
        "5: fallbacks.fats: ",
        "did you mean 'fast'?",
    ),
    "a list for one text": (f"{UP}instructions: [a, b]\n", "3: instructions: ", "expected text"),
    "a fraction of retries": (
        "providers:\n  up: {type: ollama, retries: 2.5}\n",
        "2: providers.up.retries: ",
        "expected a whole number",
    ),
    "namespaces without owners": (
        f"{UP}spokes: {{namespaces: [stock]}}\n",
        "3: spokes.namespaces: ",
        "write `NAME:`",
    ),
    "an effect of a spoke": (
        f"{UP}spokes: {{effects: {{stock.*: reads}}}}\n",
        "3: spokes.effects.'stock.*': ",
        "did you mean 'read'?",
    ),
    "a policy without dashes": (
        f"{UP}policy: {{deny: web.*}}\n",
        "3: policy: ",
        "each item begins with `- `",
    ),
    "an unknown way to balance": (
        f"{UP}aliases:\n  a: {{models: [up/x, up/y], balance: random}}\n",
        "4: aliases.a.balance: ",
        "round_robin",
    ),
    "a weight of another model": (
        f"{UP}aliases:\n  a: {{models: [up/x], balance: weighted, weights: {{up/z: 2}}}}\n",
        "4: aliases.a.weights.up/z: ",
        "did you mean 'up/x'?",
    ),
    "secrets of a server as a list": (
        f"{UP}mcp_servers:\n  git: {{command: [uvx, git], secrets: [TOKEN]}}\n",
        "4: mcp_servers.git.secrets: ",
        "write `NAME:`",
    ),
    "a misspelt embedder": (
        f"{UP}search: {{embeddings: minlm}}\n",
        "3: search.embeddings: ",
        "did you mean 'minilm'?",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_line_its_field_and_a_fix(
    mistake: str, run: Run, tmp_path: Path
) -> None:
    text, place, fix = MISTAKES[mistake]
    (tmp_path / "dragoman.yaml").write_text(text, encoding="utf-8-sig")  # with a BOM, as some editors do
    result = run("check")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"dragoman: dragoman.yaml:{place}")
    assert fix in result.err
    assert "sk-ant" not in result.err


@pytest.mark.parametrize("name", ["dragoman.yml", ".dragoman.yaml", "dragoman.yaml.txt"])
def test_a_file_of_a_similar_name_is_not_passed_over(name: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / name).write_text(UP, encoding="utf-8")
    for command in (("check",), ("serve", "--port", "0")):
        result = run(*command)
        assert result.code == 1
        assert name in result.err
        assert "dragoman.yaml" in result.err
        assert f"--config {name}" in result.err
    assert run("check", "--config", name).code == 0


def test_a_file_that_is_not_there_is_named(run: Run) -> None:
    for command in (("check",), ("serve", "--port", "0")):
        result = run(*command, "--config", "hub.yaml")
        assert (result.code, "hub.yaml" in result.err) == (1, True)
        assert str(Path.cwd()) in result.err


REFUSED = [mistake for mistake, (_, place, _) in MISTAKES.items() if "[0]" in place or "not there" in mistake]


@pytest.mark.parametrize("mistake", REFUSED)
def test_serve_refuses_what_check_refuses_with_the_same_words(mistake: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "dragoman.yaml").write_text(MISTAKES[mistake][0], encoding="utf-8")
    assert run("serve", "--port", "0") == run("check")

"""Hooks: functions that are asked before a call and after it; they may forbid or change it."""

from __future__ import annotations

from dragoman import Agent, Block, Hooks, Modify, PostToolUse, PreToolUse, ScriptedModel, operation


def no_strangers(event: PreToolUse) -> Block | None:
    return None if event.input["to"].endswith("@example.org") else Block("mail goes to example.org only")


def no_numbers(event: PostToolUse) -> Modify | None:
    print(event.input["to"], event.status, event.error or event.output)
    return None if event.error else Modify(output="sent", reason="the number is ours")


@operation(namespace="mail")
def send(to: str) -> str:
    """Send a letter."""
    return f"sent to {to} as number 7"


hooks = Hooks()  # @hooks.pre_tool_use above a function says the same
hooks.on("pre_tool_use", no_strangers, match="mail.*")
hooks.on("post_tool_use", no_numbers)

# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
model = ScriptedModel(
    [
        ("mail_send", {"to": "eve@example.com"}),
        ("mail_send", {"to": "ann@example.org"}),
        "Eve got nothing, Ann: {outputs}",
    ]
)
print(Agent(model, operations=[send], hooks=hooks).run_sync("Tell both.").text)

"""Sub-agents: an operation that asks an agent of its own, within the budget and deadline of the call."""

from __future__ import annotations

from dragoman import Agent, CallError, Context, ScriptedModel, operation
from dragoman import events as e

# Scripts play the models, so that this needs no key. A real one is a name: Agent("openai/gpt-5.1", ...)
researcher = Agent(ScriptedModel(["Bonn, on the Rhine."]), instructions="Find it out.", name="researcher")


@operation(namespace="team", effect="read")
async def research(question: str, context: Context) -> str:
    """Have a researcher find something out."""
    run = researcher.spawn(question, context=context)
    said = ""
    try:
        async for event in run.events():
            if isinstance(event, e.TextDelta):
                said += event.delta
                context.progress(said)  # shown as preliminary output
        result = await run.result
    finally:
        run.abort("the call has ended")  # when the parent is aborted; else it is over already
    if result.exit_reason != "success":
        raise CallError(f"the researcher ended with {result.exit_reason}")
    return result.text  # only this reaches the parent


model = ScriptedModel([("team_research", {"question": "Which was the capital?"}), "It was {outputs}"])
result = Agent(model, operations=[research]).run_sync("Ask about the capital before Berlin.")
print(result.text)
print(result.exit_reason, result.steps, result.tool_calls.total)

"""Structured output: the answer as a value of a type; what does not fit is asked for again."""

from __future__ import annotations

from dataclasses import dataclass

from dragoman import Agent, ScriptedModel


@dataclass
class City:
    name: str
    people: int


# A script plays the model, so that this needs no key. A real one is a name: model = "openai/gpt-5.1"
model = ScriptedModel(['{"name": "Bonn", "people": "many"}', '{"name": "Bonn", "people": 335000}'])
result = Agent(model, output=City).run_sync("Which city was the capital before Berlin?")
print(result.output)
print(f"{result.exit_reason} after {result.steps} steps")

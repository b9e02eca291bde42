"""Hooks that a configuration names."""

from dragoman import Block, PreToolUse

__all__ = ["no_luck"]


def no_luck(event: PreToolUse) -> Block | None:
    """Nobody asks for luck."""
    return Block("luck is not to be had") if event.input.get("name") == "luck" else None

"""Redaction of patterns, such as mail addresses, from what the model is told."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dragoman.agent.hooks.events import Modify, PostToolUse, PreToolUse, UserPromptSubmit
from dragoman.agent.hooks.guards.json_strings import replace_strings
from dragoman.agent.hooks.hooks import Hooks
from dragoman.errors import ConfigError

PATTERNS: Mapping[str, str] = {
    "email": r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}",
    "card": r"(?<![0-9])[3-6](?:[ -]?[0-9]){12,18}(?![0-9])",
    "iban": r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b",
    "phone": r"(?<![\w+])\+[1-9](?:[ ()./-]{0,2}[0-9]){7,14}(?![0-9])",
    "ip": r"(?<![\d.])(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}(?![\d.])",
    "ssn": r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b",
}


class Redaction:
    """Patterns by name; each match becomes `[name]`. Raises ConfigError for an unknown name or invalid
    pattern.
    """

    def __init__(self, *names: str, also: Mapping[str, str] | None = None) -> None:
        unknown = [name for name in names if name not in PATTERNS]
        if unknown:
            available = ", ".join(PATTERNS)
            raise ConfigError(
                f"there is no pattern {unknown[0]!r}",
                hint=f"use one of {available}, or pass your own in `also`",
            )
        wanted = {**{name: PATTERNS[name] for name in names}, **(also or {})}
        if not wanted:
            raise ConfigError(
                "redaction needs at least one pattern", hint=f"use one of {', '.join(PATTERNS)}"
            )
        self._patterns = {name: compile_pattern(name, pattern) for name, pattern in wanted.items()}

    def text(self, text: str) -> str:
        """Return the text with matches replaced."""
        for name, pattern in self._patterns.items():
            text = pattern.sub(lambda found, name=name: mask(name, found[0]), text)  # type: ignore[misc]  # a bound default
        return text

    def value(self, value: Any) -> Any:
        """Return the JSON value with matches replaced, in field names too."""
        return replace_strings(value, lambda text, _: self.text(text))

    def after(self, event: PostToolUse) -> Modify | None:
        """A `post_tool_use` hook."""
        output = event.output if event.error is None else event.error
        redacted = self.value(output)
        return None if redacted == output else Modify(output=redacted, reason="it was redacted")

    def before(self, event: PreToolUse) -> Modify | None:
        """A `pre_tool_use` hook."""
        redacted = self.value(event.input)
        return None if redacted == event.input else Modify(redacted, "it was redacted")

    def prompt(self, event: UserPromptSubmit) -> Modify | None:
        """A `user_prompt_submit` hook."""
        redacted = self.text(event.text)
        return None if redacted == event.text else Modify(redacted, "it was redacted")


def redact(*names: str, also: Mapping[str, str] | None = None, of: Sequence[str] = ("results",)) -> Hooks:
    """Return hooks that redact patterns in `results`, `arguments` and `prompts`, whichever `of` names."""
    redaction, hooks = Redaction(*names, also=also), Hooks()
    unknown = set(of) - {"results", "arguments", "prompts"}
    if unknown:
        raise ConfigError(f"only results, arguments and prompts can be redacted, not {min(unknown)!r}")
    if "arguments" in of:
        hooks.on("pre_tool_use", redaction.before, name="redaction")
    if "results" in of:
        hooks.on("post_tool_use", redaction.after, name="redaction", on_error="block")
    if "prompts" in of:
        hooks.on("user_prompt_submit", redaction.prompt, name="redaction")
    return hooks


def compile_pattern(name: str, pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"the pattern {name!r} is not a valid regular expression: {error}") from None
    if compiled.match(""):
        raise ConfigError(f"the pattern {name!r} matches the empty text, so it would match everywhere")
    return compiled


def mask(name: str, text: str) -> str:
    return text if name == "card" and not is_card(text) else f"[{name}]"


def is_card(text: str) -> bool:
    """Return whether the number's check digit is right (Luhn, ISO/IEC 7812)."""
    digits = [int(each) for each in reversed(text) if each.isdecimal()]
    doubled = [sum(divmod(2 * each, 10)) for each in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0

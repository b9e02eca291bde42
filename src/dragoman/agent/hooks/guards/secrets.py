"""The secret scan: keys in arguments and results are blocked, or blotted out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dragoman.agent.hooks.events import Block, Modify, PostToolUse, PreToolUse
from dragoman.agent.hooks.guards.findings import find_secrets, has_encoded_secret
from dragoman.agent.hooks.guards.redaction import Redaction
from dragoman.agent.hooks.guards.texts import replace_strings, strings_in
from dragoman.agent.hooks.hooks import Hooks
from dragoman.operations.arguments.schema import is_secret_name

Action = Literal["block", "redact", "off"]
MASK = "[secret]"


class SecretScan:
    """Finds secrets in JSON values: `known` ones, keys of known forms, and with `entropy` random words.

    `fields`: what stands in a result's field named like a secret (`password`) is one too. `patterns` are
    names of patterns that are blotted out along with secrets; see `redact`.
    """

    def __init__(
        self,
        known: Sequence[str] = (),
        *,
        entropy: bool = True,
        fields: bool = False,
        patterns: Sequence[str] = (),
    ) -> None:
        self._known = sorted({each for each in known if len(each) >= 4}, key=len, reverse=True)
        self._entropy = entropy
        self._fields = fields
        self._redaction = Redaction(*patterns) if patterns else None

    def __repr__(self) -> str:
        return "SecretScan()"

    def has_secret(self, value: Any) -> bool:
        """Whether there is a secret in it."""
        return any(self._has_secret_in(found.text) for found in strings_in(value))

    def redact(self, value: Any) -> Any:
        """The value without secrets."""
        return replace_strings(value, self._redact_text)

    def hooks(self, *, arguments: Action = "block", results: Action = "redact") -> Hooks:
        """The hooks that look at calls. A scan that fails counts as one that found something."""
        hooks = Hooks()
        if arguments != "off":
            scan = self._block_call if arguments == "block" else self.before
            hooks.on("pre_tool_use", scan, name="secret_scan", on_error="block")
        if results != "off":
            look = self._block_result if results == "block" else self.after
            hooks.on("post_tool_use", look, name="secret_scan", on_error="block")
        return hooks

    def _has_secret_in(self, text: str) -> bool:
        known = any(each in text for each in self._known)
        return known or bool(find_secrets(text, entropy=self._entropy)) or has_encoded_secret(text)

    def _redact_text(self, text: str, field: str) -> str:
        if self._fields and text and is_secret_name(field):
            return MASK
        for each in self._known:
            text = text.replace(each, MASK)
        for start, end in reversed(find_secrets(text, entropy=self._entropy)):
            text = f"{text[:start]}{MASK}{text[end:]}"
        if has_encoded_secret(text):
            return MASK
        return text if self._redaction is None else self._redaction.text(text)

    def _block_call(self, event: PreToolUse) -> Block | None:
        return Block("a secret stands in the arguments") if self.has_secret(event.input) else None

    def before(self, event: PreToolUse) -> Modify | None:
        """A `pre_tool_use` hook that blots secrets out of arguments, whatever their fields are called."""
        kept = replace_strings(event.input, lambda text, _: self._redact_text(text, ""))
        return None if kept == event.input else Modify(kept, "secrets were taken out")

    def _block_result(self, event: PostToolUse) -> Block | None:
        return Block("there is a secret in it") if self.has_secret([event.output, event.error]) else None

    def after(self, event: PostToolUse) -> Modify | None:
        """A `post_tool_use` hook that blots secrets out of results and errors."""
        said = event.output if event.error is None else event.error
        kept = self.redact(said)
        return None if kept == said else Modify(output=kept, reason="secrets were taken out")


def secret_scan(
    known: Sequence[str] = (),
    *,
    arguments: Action = "block",
    results: Action = "redact",
    entropy: bool = True,
    fields: bool = False,
    patterns: Sequence[str] = (),
) -> Hooks:
    """Hooks that look for secrets in arguments and results, and block the call or blot them out."""
    scan = SecretScan(known, entropy=entropy, fields=fields, patterns=patterns)
    return scan.hooks(arguments=arguments, results=results)

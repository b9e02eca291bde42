"""Destructive commands: require approval for, or block, calls that would delete, overwrite or stop things.

It recognises commands that are written plainly, not those that a program, script or encoding hides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from dragoman.agent.hooks.events import Ask, Block, PreToolUse
from dragoman.agent.hooks.guards.json_strings import strings_in
from dragoman.operations.sanitize import INVISIBLE
from dragoman.unicode_normalisation import normalise_text

# Patterns by what a command does, for lower-case text with single spaces

REST = r"[^|;&\n]{0,200}?"  # of a command
FLAG = rf"{REST} -"
GIT = r"\bgit\b[^|;&\n]{0,60}?"
SHELL = r"\b(?:ba|z|da|k|fi)?sh\b"

DESTRUCTIVE: Mapping[str, tuple[str, ...]] = {
    "deletes files": (
        rf"\brm\b{FLAG}(?:[a-z]*[rf]|-recursive|-force|-no-preserve)",
        rf"\bxargs\b{REST}\brm\b",
        r"\bunlink ",
        r"\bshred\b",
        rf"\bfind\b{FLAG}(?:delete\b|exec(?:dir)? (?:\S{{0,100}}/)?(?:rm|shred)\b)",
        r"\brmtree\(",
        r"\bos\.(?:remove|unlink)\(",
        rf"\brsync\b{FLAG}-delete",
        r"\bremove-item\b",
        rf"\b(?:rmdir|rd|del|erase)\b{REST} /[sqf]\b",
        rf"\btruncate\b{FLAG}(?:s|-size)",
    ),
    "writes to a disk": (
        rf"\bdd\b{REST}\bof=",
        r"\b(?:mkfs|mkswap|wipefs|blkdiscard|fdisk|sgdisk|parted|diskpart)\b",
        r"> ?/dev/(?:sd|nvme|hd|vd|disk|mmcblk|mapper)",
        r"\bformat [a-z]:",
    ),
    "changes rights of all below": (rf"\bch(?:mod|own|grp)\b{FLAG}(?:[a-z]*r\b|-recursive)",),
    "stops the machine or its programs": (
        r"\b(?:shutdown|reboot|poweroff|halt)\b",
        r"\binit [06]\b",
        r"\b(?:killall|pkill)\b",
        rf"\bkill\b{REST} -1\b",
        r": ?\( ?\) ?\{",
    ),
    "rewrites history": (
        rf"{GIT}\bpush\b{REST} (?:-[a-z]*[fd]\b|--force|--delete|--mirror|--prune|\+\S|:\S)",
        rf"{GIT}\breset\b{FLAG}-hard",
        rf"{GIT}\bclean\b{FLAG}(?:[a-z]*[fdx]|-force)",
        rf"{GIT}\bbranch\b{FLAG}(?:d\b|-delete)",
        rf"{GIT}\b(?:filter-branch|filter-repo|update-ref -d)\b",
        rf"{GIT}\b(?:checkout|restore)\b{REST} (?:-- )?\.(?: |$)",
        rf"{GIT}\bstash (?:drop|clear)",
    ),
    "drops data": (
        r"\bdrop (?:table|database|schema|view|index|user|role|collection|keyspace|column|materialized)\b",
        r"\btruncate (?:table )?[a-z_\"`\[]",
        r"\bdropdb\b",
        r"\bflush(?:all|db)\b",
        r"\bdropdatabase\b",
        r"\.drop\(\)",
        r"\bdeletemany\( ?\{ ?\}",
    ),
    "takes infrastructure down": (
        rf"\b(?:terraform|tofu|pulumi)\b{REST}\bdestroy\b",
        rf"\bkubectl\b{REST}\bdelete\b",
        rf"\bhelm\b{REST}\b(?:uninstall|delete)\b",
        rf"\baws\b{REST}\b(?:s3 r[mb]|terminate-instances|delete-\w)",
        rf"\bgcloud\b{REST}\bdelete\b",
        rf"\baz\b{REST} delete\b",
        rf"\bdocker\b{REST}\b(?:prune|rm|rmi)\b",
        rf"\bcrontab\b{FLAG}r\b",
        r"\buserdel\b",
    ),
    "runs what it downloads or decodes": (
        rf"\b(?:curl|wget|base64|xxd|openssl)\b{REST}\|[^;\n]{{0,200}}?{SHELL}",
        rf"{SHELL} <\( ?(?:curl|wget)",
        rf"\beval\b{REST}(?:\$\(|`)",
    ),
}


MAX_LENGTH = 1_000_000  # characters; a longer text is not scanned and needs approval
CHUNK, OVERLAP = 16_384, 512  # short, so that a long text does not hold the GIL for long
ROW_CHANGE = re.compile(r"\b(?:delete from|update \S{1,200} set)\b")


def confirm_destructive(
    *,
    action: Literal["ask", "block"] = "ask",
    also: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> Callable[[PreToolUse], Ask | Block | None]:
    """Return a `pre_tool_use` hook that asks for approval of calls with a destructive command in an argument.

    `also` adds patterns by what they do, matched against lower-case text with single spaces. Arguments in
    `ignore` are skipped.
    """
    builtin = {what: "|".join(forms) for what, forms in DESTRUCTIVE.items()}
    patterns = {what: re.compile(pattern) for what, pattern in {**builtin, **(also or {})}.items()}

    def confirm_destructive(event: PreToolUse) -> Ask | Block | None:
        inputs = {name: value for name, value in event.input.items() if name not in ignore}
        what = next(
            (found for each in candidate_commands(inputs) if (found := damage_of(each, patterns))), None
        )
        if what is None:
            return None
        return Block(f"it {what}") if action == "block" else Ask(f"it {what}")

    return confirm_destructive


def candidate_commands(input: Mapping[str, Any]) -> list[str]:
    """Return the texts that may be a command: each one, and all joined (`rm` and its flags may be
    separate).
    """
    candidates = [each.text for each in strings_in(input) if not each.is_key]
    return list(dict.fromkeys([*candidates, " ".join(candidates)]))


def damage_of(command: str, patterns: Mapping[str, re.Pattern[str]]) -> str | None:
    """Return what a command does that cannot be undone, or None."""
    if len(command) > MAX_LENGTH:
        return "is too long to be looked through"
    for reading in normalised_forms(command):
        for start in range(0, len(reading), CHUNK):
            piece = reading[start : start + CHUNK + OVERLAP]
            what = next((what for what, pattern in patterns.items() if pattern.search(piece)), None)
            if what is not None:
                return what
        if any(lacks_where(each) for each in reading.split(";")):
            return "changes all rows of a table"
    return None


def normalised_forms(command: str) -> list[str]:
    """Return the command as a shell or database reads it: without quotes, escapes, comments, double
    spaces.
    """
    text = INVISIBLE.sub("", normalise_text("NFKC", command)).lower()
    text = re.sub(r"\\\r?\n", "", text)
    text = re.sub(r"/\*[^*]{0,1000}\*/|\$\{?ifs\}?", " ", text)
    tidy = re.sub(r"[ \t\r\f\v]+", " ", text)
    bare = re.sub(r"\\(?=[a-z-])|\"|'|\$(?=['\"])", "", tidy)
    flat = re.sub(r"\s+", " ", re.sub(r"--[^\n]{0,1000}\n", " ", bare))
    return list(dict.fromkeys([tidy, bare, flat]))


def lacks_where(statement: str) -> bool:
    """Return whether SQL deletes or changes rows without a WHERE."""
    return bool(ROW_CHANGE.search(statement)) and " where " not in f"{statement} ".replace("\n", " ")

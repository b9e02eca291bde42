"""Path patterns: `*`, `?` and `[...]` within a name, `**` for any number of folders."""

from __future__ import annotations

from fnmatch import fnmatchcase

from dragoman.errors import BadRequest

MAX_PARTS = 32  # names in a pattern


class PathPattern:
    """A pattern of relative paths.

    All positions in the pattern are followed at once and none is tried again, so a match takes time at most
    in proportion to the product of both lengths.
    """

    def __init__(self, text: str) -> None:
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if not parts or len(parts) > MAX_PARTS or ".." in parts:
            raise BadRequest(
                f"{text[:200]!r} is not a pattern of paths below the folder.",
                field="pattern",
                hint="Write it like *.py, src/**/*.py or docs/[a-m]*.md.",
            )
        self._parts = tuple(
            part for number, part in enumerate(parts) if part != "**" or parts[number - 1 : number] != ["**"]
        )

    def matches(self, path: str) -> bool:
        """Return whether a path matches as a whole."""
        end = len(self._parts)
        reached = self._past_folders({0})  # how many parts of the pattern the names so far may have matched
        for name in path.split("/"):
            stay = {part for part in reached if part < end and self._parts[part] == "**"}
            step = {
                part + 1 for part in reached - stay if part < end and fnmatchcase(name, self._parts[part])
            }
            reached = self._past_folders(stay | step)
        return end in reached

    def _past_folders(self, reached: set[int]) -> set[int]:
        """Add the parts after each `**`, which may stand for no folder."""
        after = set(reached)
        for part, text in enumerate(self._parts):
            if text == "**" and part in after:
                after.add(part + 1)
        return after
